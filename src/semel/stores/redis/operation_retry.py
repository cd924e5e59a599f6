"""One operation from its first call to its reply, with every retry, and which node serves which
bucket. No I/O: both pools run it.

Every script is idempotent per fence, so a call whose answer was lost is sent again. This module
decides when: after a failover, a moved slot, a broken connection or an unknown script. The steps
are a generator; a pool does what each step asks for, and sends back the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from semel.core.operations.requests import StoreOperation
from semel.log import log
from semel.stores.base import CHECK_AGAIN
from semel.stores.redis.commands import ANY, BUCKETS, SLOT_OF, SLOTS, Keys, RedisCall, pack
from semel.stores.redis.errors import RedisFault, Remedy, not_served, store_error, timed_out
from semel.stores.redis.plans import REQUEST_PLANS, Plan
from semel.stores.redis.plans_maintenance import MAINTENANCE_PLANS
from semel.stores.redis.plans_notables import NOTABLE_PLANS
from semel.stores.redis.settings import NodeAddress, RedisSettings

R = TypeVar("R")

PLANS: Final = {**REQUEST_PLANS, **MAINTENANCE_PLANS, **NOTABLE_PLANS}

REDIRECTIONS: Final = 16
"""How often a call is redirected, or sent again at once, before that is an error."""

PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds before the next try where only waiting helps; the last one repeats until the deadline."""

SINGLE_SERVER_TRIES: Final = 2
"""Tries on one server whose connections break. A cluster has other nodes, which take over."""

NODE_TIMEOUT: Final = 1.0
"""Seconds for one node to say who the primaries are, before the next node is asked."""

UNREACHABLE: Final = ("TIME", "CONNECT", "LINK")
"""Codes of faults after which a node may have been replaced."""

_ASKING: Final = pack((b"ASKING",))
_SLOTS: Final = RedisCall(ANY, ("CLUSTER", "SLOTS"))


class Topology:
    """The map of buckets to nodes. One server serves all; a cluster is asked, and asked again; and
    so are Sentinels, who name one primary for all.

    ``doubtful``: a node could not be reached and may have been replaced, so the map must be
    refreshed before it is used. ``version`` counts the refreshes.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self.seeds = settings.seeds
        self.follows = settings.follows
        self.service = settings.service
        self._listeners = settings.listeners
        self.doubtful = False
        self.version = 0
        self.sentinels = list(self.seeds)
        self._epoch = -1
        self._ask_again = 0.0 if self.service else inf
        self._map: list[NodeAddress | None] = [None] * BUCKETS
        if not self.follows:
            self._map = [self.seeds[0]] * BUCKETS

    def at(self, bucket: int, *, refreshed: bool = False) -> NodeAddress | None:
        """The node of a bucket; None: the map must be refreshed first.

        ``refreshed``: it just was, so it cannot be too old.
        """
        if self.doubtful or not (refreshed or monotonic() < self._ask_again):
            return None
        return self._map[bucket]

    def suspect(self, faults: Iterable[RedisFault]) -> None:
        """Mark the map as doubtful if one of the faults says that a node cannot be reached."""
        if self.follows and any(fault.code in UNREACHABLE for fault in faults):
            self.doubtful = True

    def replaced(self, address: NodeAddress) -> bool:
        """Sentinels have named another primary: what this one still answers may not last."""
        return bool(self.service) and address not in (self._map[0], *self.seeds)

    def primaries(self) -> tuple[NodeAddress, ...]:
        """Every node on the map; those of the URL while the map is empty."""
        return tuple(dict.fromkeys(filter(None, self._map))) or self.seeds

    def follow(self, named: Sequence[tuple[int, NodeAddress]]) -> RedisFault | None:
        """Take over what Sentinels said: epochs and addresses of primaries. The newest counts.

        One that was replaced before is refused, unless all Sentinels name it: they were set up
        anew. Those who are cut off from the others do not know of its heir.
        """
        epoch, primary = max(named)
        if epoch < self._epoch and len(named) < len(self.seeds):
            text = f"Sentinels name {primary}, which was replaced before"
            return RedisFault(text, Remedy.WAIT, code="SENTINEL")
        before = self._map[0]
        if before is not None and before != primary:
            log.warning("semel: Sentinels replaced a primary: %s by %s", before, primary)
            for listener in self._listeners:
                listener(str(before), str(primary))
        self._epoch = epoch
        self._map = [primary] * BUCKETS
        self._ask_again = monotonic() + CHECK_AGAIN
        self.doubtful = False
        self.version += 1
        return None

    def update(self, slots: Any, asked: NodeAddress) -> None:
        """Take over what CLUSTER SLOTS returned: ``[[first, last, [host, port, …], …], …]``.

        The primary is the first node of each range. A host that is empty or ``?`` is the host that
        was asked.
        """
        nodes: list[NodeAddress | None] = [None] * SLOTS
        for first, last, primary, *_ in slots:
            host = primary[0].decode() if primary[0] else asked.host
            node = NodeAddress(asked.host if host == "?" else host, primary[1])
            nodes[first : last + 1] = [node] * (last + 1 - first)
        self._map = [nodes[SLOT_OF[bucket]] for bucket in range(BUCKETS)]
        self.doubtful = False
        self.version += 1


class Attempt:
    """One call, and what has been tried for it.

    ``address``: the node that a redirection named; it wins over the topology. ``asking``: send
    ASKING first. ``full``: send the script's text. ``fault``: why it is being sent again.
    """

    __slots__ = ("address", "asking", "call", "doubt", "fault", "full", "hops", "reply", "waits")

    def __init__(self, call: RedisCall) -> None:
        self.call = call
        self.address: NodeAddress | None = None
        self.asking = self.full = self.doubt = False
        self.hops = self.waits = 0
        self.fault: RedisFault | None = None
        self.reply: Any = None

    def packed(self) -> bytes:
        """The bytes that are written on a connection."""
        command = pack(self.call.full() if self.full else self.call.command)
        return _ASKING + command if self.asking else command

    def take(self, outcome: Any, follows: bool) -> float | None:
        """Keep a reply and return None; after a fault, return the seconds until the next try.

        Raises what the store's caller gets when no try can help.
        """
        self.address, asked = None, self.asking
        self.asking = False
        if not isinstance(outcome, RedisFault):
            self.reply, self.fault = outcome, None
            return None
        self.doubt = self.doubt or outcome.doubt
        pause = self._pause_after(outcome, follows, asked)
        if pause is None:
            if outcome.code == "TIME" and self.fault is not None:  # name what was waited for
                outcome = RedisFault(f"{self.fault}, and no time is left", code="TIME")
            raise store_error(outcome, doubt=self.doubt) from None
        self.fault = outcome
        return pause

    def _pause_after(self, fault: RedisFault, follows: bool, asked: bool) -> float | None:
        """Prepare the next try; None: there is none."""
        self.hops += 1
        match fault.remedy:
            case Remedy.NONE:
                return None
            case Remedy.SEND_SCRIPT:
                self.full, self.asking = True, asked
                self.address = fault.address
                return 0.0 if self.hops <= REDIRECTIONS else None
            case Remedy.MOVED | Remedy.ASK:
                self.address, self.asking = fault.address, fault.remedy is Remedy.ASK
                return 0.0 if follows and self.hops <= REDIRECTIONS else None
            case Remedy.RECONNECT if not follows or fault.code == "AUTH":
                return 0.0 if self.hops < SINGLE_SERVER_TRIES else None
            case Remedy.WAIT if not follows and fault.broken:
                return None  # the only server cannot be reached
            case Remedy.RECONNECT | Remedy.WAIT:
                self.hops = 0
                self.waits += 1
                return PAUSES[min(self.waits, len(PAUSES)) - 1]


class SendBatches(NamedTuple):
    """Send to each node its attempts; the result has one list of replies and faults per node."""

    batches: Mapping[NodeAddress, Sequence[Attempt]]
    deadline: float


class RetryPause(NamedTuple):
    """Wait so long; the result is None."""

    seconds: float


class RefreshTopology(NamedTuple):
    """Run `refresh`, once for all callers that want it now; the result is its result."""


Steps: TypeAlias = Generator[SendBatches | RetryPause | RefreshTopology, Any, R]


def operation(
    op: StoreOperation[R],
    keys: Keys,
    topology: Topology,
    deadline: float,
    fault: RedisFault | None = None,
) -> Steps[R]:
    """All steps of an operation: send the calls of its plan until each has a reply.

    ``fault``: how a first try of its only call ended, where there was one.
    """
    make = cast("Callable[[StoreOperation[R], Keys], Plan[R]] | None", PLANS.get(type(op)))
    if make is None:
        raise TypeError(f"not an operation of a store: {type(op).__name__}")
    plan = make(op, keys)
    calls = next(plan)
    while True:
        attempts = [Attempt(call) for call in calls]
        yield from _send_until_replied(attempts, topology, deadline, fault)
        try:
            calls = plan.send([attempt.reply for attempt in attempts])
        except StopIteration as done:
            reply: R = done.value
            return reply
        fault = None


def _send_until_replied(
    waiting: Sequence[Attempt], topology: Topology, deadline: float, fault: RedisFault | None
) -> Steps[None]:
    follows = topology.follows
    results: list[tuple[Attempt, Any]] = [] if fault is None else [(waiting[0], fault)]
    while True:
        if not results and deadline <= monotonic():
            results = [(each, timed_out(False)) for each in waiting]
        elif not results:
            batches = _by_node(waiting, topology)
            if None in batches:
                fault = yield RefreshTopology()
                batches = _by_node(waiting, topology, refreshed=fault is None)
                lost = batches.pop(None, ())
                results += [(each, fault or not_served(SLOT_OF[each.call.bucket])) for each in lost]
            if batches:
                replies = yield SendBatches(batches, deadline)
                for batch, outcomes in zip(batches.values(), replies, strict=True):
                    results += zip(batch, outcomes, strict=True)
        pauses = [(attempt, attempt.take(outcome, follows)) for attempt, outcome in results]
        again = [(attempt, pause) for attempt, pause in pauses if pause is not None]
        if not again:
            return
        waiting, results = [attempt for attempt, _ in again], []
        moved = any(each.fault and each.fault.remedy is Remedy.MOVED for each in waiting)
        longest = max(pause for _, pause in again)
        if longest:
            yield RetryPause(max(0.0, min(longest, deadline - monotonic())))
        if follows and (longest or moved) and deadline > monotonic():
            yield RefreshTopology()


def _by_node(
    attempts: Sequence[Attempt], topology: Topology, *, refreshed: bool = False
) -> dict[Any, list[Attempt]]:
    """Group attempts by the address of their node; None: no node is known for them."""
    batches: dict[Any, list[Attempt]] = {}
    for attempt in attempts:
        address = attempt.address or topology.at(attempt.call.bucket, refreshed=refreshed)
        batches.setdefault(address, []).append(attempt)
    return batches


def refresh(topology: Topology, deadline: float) -> Steps[RedisFault | None]:
    """Ask who the primaries are; None, or the last fault if nobody knew."""
    steps = _ask_sentinels if topology.service else _ask_nodes
    return (yield from steps(topology, deadline))


def _ask_sentinels(topology: Topology, deadline: float) -> Steps[RedisFault | None]:
    """More than half of the Sentinels of the URL must tell, as a failover takes more than half.

    Those who answered last time are asked first.
    """
    service, named, silent = topology.service, list[tuple[int, NodeAddress]](), list[NodeAddress]()
    calls = [
        RedisCall(ANY, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)),
        RedisCall(ANY, ("SENTINEL", "MASTER", service)),
    ]
    count = f"of {len(topology.seeds)} Sentinels say who the primary of {service!r} is"
    fault = RedisFault("nobody was asked", Remedy.WAIT)
    for address in [*topology.sentinels]:
        soon = min(deadline, monotonic() + NODE_TIMEOUT)
        (answers,) = yield SendBatches({address: [Attempt(call) for call in calls]}, soon)
        try:
            named.append(_named(*answers))
        except RedisFault as said:
            silent.append(address)
            fault = said
        topology.sentinels = [each for each in topology.sentinels if each not in silent] + silent
        if 2 * len(named) > len(topology.seeds):
            refused = topology.follow(named)
            if refused is None:
                return None
            fault = refused
    return RedisFault(f"{len(named)} {count}: {fault}", fault.remedy, code=fault.code)


def _named(where: Any, told: Any) -> tuple[int, NodeAddress]:
    """The epoch and the address of a primary, as one Sentinel has them."""
    for answer in (where, told):
        if isinstance(answer, RedisFault):
            raise answer
    try:
        host, port = where
        facts = {
            bytes(name): bytes(value) for name, value in zip(told[::2], told[1::2], strict=True)
        }
        return int(facts[b"config-epoch"]), NodeAddress(host.decode(), int(port))
    except (TypeError, ValueError, KeyError):
        raise RedisFault("this Sentinel does not know it", Remedy.WAIT) from None


def _ask_nodes(topology: Topology, deadline: float) -> Steps[RedisFault | None]:
    """Ask one node after the other for the map of slots."""
    fault: RedisFault | None = None
    for address in dict.fromkeys((*topology.primaries(), *topology.seeds)):
        soon = min(deadline, monotonic() + NODE_TIMEOUT)
        ((answer,),) = yield SendBatches({address: [Attempt(_SLOTS)]}, soon)
        if not isinstance(answer, RedisFault):
            topology.update(answer, address)
            return None
        fault = answer
    return fault
