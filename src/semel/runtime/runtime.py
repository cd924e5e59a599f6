"""The runtime: what one process has of a guard.

A guard is settings, the same in every process. Whatever requests leave behind is here: the leases
they hold, the writes that are pursued for them, what the store was like lately, what each tenant
has asked for, which keys and routes were met, and the threads beside them. An exchange gets its
guard's runtime when its request comes and keeps it.

A guard is made before its server forks, so a forked child gets a runtime of its own, made while it
has but one thread. No lock decides who makes it, for a fork could copy that while it is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from semel.core.exchange.answers import Outcome
from semel.core.exchange.settings_changed import announce, enrol
from semel.core.flow import Flow
from semel.core.policy import Policy, RoutePlan
from semel.core.records import Identity
from semel.core.terms import TermsId
from semel.errors import ConfigurationError
from semel.runtime.breaker import Breaker
from semel.runtime.events import Events
from semel.runtime.leases import Keeper
from semel.runtime.limits import Limiter, Limits
from semel.runtime.notables import NotableRecorder
from semel.runtime.replay_cache import ReplayCache
from semel.stores.base import Backend

if TYPE_CHECKING:
    import asyncio

    from semel.runtime.shadow import ShadowCounts

FAILED: Final = frozenset((Outcome.STORE_ERROR, Outcome.MISCONFIGURED, Outcome.NOT_DURABLE))
_NOTED: Final = frozenset(
    (
        *(Outcome.IN_FLIGHT, Outcome.MISMATCH, Outcome.UNKNOWN, Outcome.EXPIRED),
        *(Outcome.RECEIPT, Outcome.THROTTLED),
    )
)


def told_outcomes(notables: NotableRecorder | None) -> frozenset[Outcome]:
    """The outcomes of requests that are told even where nobody listens to events."""
    if notables is None:
        return FAILED
    if not notables.replays:
        return FAILED | _NOTED
    return FAILED | _NOTED | {Outcome.REPLAYED}


MAX_PLANS: Final = 1024
"""Routes that are remembered. An application has a few; names made for every call are no end."""


class Background(Protocol):
    """A thread that stands beside requests."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Runtime:
    """What one process has of a guard; an exchange knows no more of its guard than this.

    Store, events, probes and ``max_waiters`` are the guard's own. All else a child starts anew:

    - the keeper: no leases, no writes to pursue, nobody who waits, no threads yet. Its parent
      goes on with those it has;
    - the breaker: closed. The child finds out by itself whether the store answers;
    - the limiter: no tenant has asked for anything, and its keys are not counted yet;
    - the replay cache and the keys seen: empty. It asks the store more often for a while;
    - notables: none. What the parent noted, it writes itself;
    - running tasks: none. Those of the parent belong to the parent's event loop;
    - plans: none. Each route's settings are compared with the store's once more;
    - maintenance and census: not begun. Its first keyed request starts their threads.
    """

    def __init__(
        self,
        backend: Backend,
        events: Events,
        *,
        application: str,
        probes: Mapping[str, Callable[..., Any]],
        max_waiters: int,
        breaker: timedelta | None,
        limits: Limits | None,
        replay_cache: timedelta | None,
        background: Callable[[Runtime], Iterable[Background]],
        notables: timedelta | None = None,
        note_replays: bool = False,
    ) -> None:
        self.backend = backend
        self.events = events
        self.probes = probes
        self.max_waiters = max_waiters
        self.keeper = Keeper(backend.blocking, events=events)
        """Renews leases, pursues writes, and looks after those who wait."""
        self.breaker = Breaker(breaker, tell=lambda now: events.emit("breaker", circuit=now))
        """Whether the store is worth asking."""
        if limits is not None and not isinstance(limits, Limits):
            raise ConfigurationError("limits= takes semel.Limits(...), or None")
        self.limiter = None if limits is None else Limiter(limits)
        """What each tenant has asked for lately."""
        self.replays = None if replay_cache is None else ReplayCache(replay_cache)
        """Answers that may be repeated without asking the store."""
        self.seen_keys = SeenKeys()
        """Keys that were probably met before."""
        self.running: set[asyncio.Task[Any]] = set()
        """Handlers and writes that go on although their callers may have left."""
        self.begun = False
        """The threads beside requests were started; asked by every keyed request."""
        self._background = background
        self._threads: list[Background] = []
        self._unbegun = [True]
        self._application = application
        self._keeps_notables, self._note_replays = notables, note_replays
        self.notables = self._recorder()
        """Notes what is worth a look later; None: nobody wants that."""
        self.told_outcomes = told_outcomes(self.notables)
        """Outcomes that somebody wants to know of."""
        self._plans: dict[str, RoutePlan] = {}
        self._shadow: dict[str, ShadowCounts] = {}
        self._enrolled: set[tuple[str, TermsId]] = set()

    # ── the threads beside requests ───────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Start the threads that stand beside requests: with the first keyed one."""
        try:
            self._unbegun.pop()  # atomic: of several that come first together, one starts them
        except IndexError:
            return
        self.begun = True
        for thread in self._background(self):
            self._threads.append(thread)
            thread.start()

    @property
    def shadow(self) -> ShadowCounts:
        """Counts what is seen of routes in shadow; begun with the first request of one."""
        counts = self._shadow.get("counts")
        if counts is None:
            from semel.runtime.shadow import ShadowCounts

            mine = ShadowCounts(self.backend.blocking, self.events, self._application)
            counts = self._shadow.setdefault("counts", mine)  # atomic: of several, one is begun
            if counts is mine:
                self._threads.append(mine)
                mine.start()
        return counts

    def _recorder(self) -> NotableRecorder | None:
        keep = self._keeps_notables
        if keep is None:
            return None
        given = self.backend, self.events, self._application, keep
        return NotableRecorder(*given, replays=self._note_replays)

    def close(self) -> None:
        """Finish what is under way in the background. The next request would begin again."""
        self._shadow = {}
        if (notables := self.notables) is not None:
            self.notables = self._recorder()
            notables.stop()
        while self._threads:
            self._threads.pop().stop()
        keeper = self.keeper
        self.keeper = Keeper(self.backend.blocking, events=self.events)
        if self.begun:
            self.begun = False
            self._unbegun.append(True)
        keeper.stop()

    # ── routes ────────────────────────────────────────────────────────────────────────────────────

    def plan(
        self, label: str, policy: Policy, route: str = "", *, probe: bool = False
    ) -> RoutePlan:
        """What is the same for every request of a route. ``route``: in its terms, if not the label.

        ``probe``: somebody else than the policy's own can be asked. Policies may be made for every
        call: then so is the plan.
        """
        made = self._plans.get(label)
        if made is None or made.policy is not policy:
            if len(self._plans) >= MAX_PLANS:
                self._plans = {}
            asks = probe or policy.probe is not None or (policy.resumable and bool(self.probes))
            terms = policy.terms(self._application, route or label, probe=asks)
            made = self._plans[label] = RoutePlan(label, policy, terms)
            made.enrolled = not policy.shadow and (label, terms.id) in self._enrolled
        return made

    def enrolment(self, plan: RoutePlan) -> Flow[None]:
        """Compare a route's settings with what the store remembers of them, once per process."""
        if (plan.label, plan.terms.id) in self._enrolled:
            return
        if self.replays is not None:
            yield from announce(self.replays.window)
        yield from enrol(recorded_as(self._application, plan.label), plan.policy, plan.terms)
        self._enrolled.add((plan.label, plan.terms.id))
        plan.enrolled = not plan.policy.shadow


def recorded_as(application: str, label: str) -> str:
    """Under which name the settings of a route are on record."""
    return f"{application}:{label}" if application else label


# ── one for each process ──────────────────────────────────────────────────────────────────────────


class Owner(Protocol):
    """A guard, as far as it matters here."""

    runtime: Runtime
    new_runtime: Callable[[], Runtime]


_owners: Final[WeakSet[Owner]] = WeakSet()
_inherited: Final[list[Runtime]] = []
"""In a forked child, its parent's. They are kept: to let go of a task that runs in the parent would
run its ``finally`` here, on connections that are the parent's."""


def give_runtime(owner: Owner) -> None:
    """Give ``owner`` its runtime, here and in every child that is forked from now on."""
    owner.runtime = owner.new_runtime()
    _owners.add(owner)


def _start_over() -> None:
    for owner in _owners:
        _inherited.append(owner.runtime)
        owner.runtime = owner.new_runtime()


os.register_at_fork(after_in_child=_start_over)


class SeenKeys:
    """A byte for each of a million slots, started over when crowded.

    A key met before is probably a replay, and reading it is cheaper than claiming it; for a new
    one, as most are, a look would be in vain. To be wrong costs one look, or saves none.
    """

    SLOTS: Final = 1 << 20
    CROWDED: Final = SLOTS // 8

    def __init__(self) -> None:
        self._slots = bytearray(self.SLOTS)
        self._marks = 0

    def meet(self, identity: Identity) -> bool:
        """Whether it was probably met before; from now on it was."""
        slot = int.from_bytes(identity[:3], "big") % self.SLOTS
        if self._slots[slot]:
            return True
        if self._marks >= self.CROWDED:
            self._slots, self._marks = bytearray(self.SLOTS), 0
        self._slots[slot] = 1
        self._marks += 1
        return False

    def forget(self, identity: Identity) -> None:
        """It was not met after all: it was turned away before anybody looked."""
        slot = int.from_bytes(identity[:3], "big") % self.SLOTS
        self._marks -= self._slots[slot]
        self._slots[slot] = 0
