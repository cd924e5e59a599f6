"""One keyed request, from its head to its answer: the one object that everybody adds to.

An adapter derives a class of its own from `Exchange`, with the way it calls its application. The
decisions are two flows that take it: `core/exchange/claim.py` ends with the lease or with an
answer, and `core/exchange/settle.py` takes what the application came to. Between them the adapter
calls it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from semel.core.exchange.problems import refuse
from semel.core.records import Micros, Origin
from semel.core.recovery.journal import Journal, Point, PointKind
from semel.core.recovery.was_sent import leaves_doubt
from semel.errors import ConfigurationError, OperationChanged

if TYPE_CHECKING:
    from semel.core.exchange.admit import Refusal
    from semel.core.exchange.answers import Answer
    from semel.core.policy import Policy, RoutePlan
    from semel.core.records import Case, Fence, Identity, Request, Response
    from semel.core.request.comparison import FieldDifference, Prints
    from semel.core.stored.requests import StoredRequest


class Exchange:
    """What is known of one request; `core/exchange/admit.py` says where it comes from."""

    __slots__ = (
        *("fence", "found", "fresh_until", "identity", "key", "older", "plan", "policy", "prints"),
        *("request", "sent", "session", "tenant"),
        *("_origin", "can_ask", "seen_before", "status_at", "stored", "worker"),
        *("differing", "journal", "seen", "shadow"),
    )

    identity: Identity
    fence: Fence
    """Made before the first try."""
    prints: Prints
    """What the body means."""
    found: Refusal | str | None
    """The key, where a policy has other places for it than one header (`admit.find_key`)."""
    sent: str
    """The key as it was sent; a policy's format may make it another, such as lower-case."""
    key: str
    tenant: str
    fresh_until: Micros | None
    seen_before: bool
    """This process has probably met the key: look before claiming."""
    can_ask: bool
    """There is somebody to ask what became of a run whose outcome is unknown."""
    shadow: ShadowRun
    """Only of a request that is watched in shadow."""
    differing: FieldDifference
    """Only of one that is not the request its key was used for: in which fields."""

    def __init__(self, plan: RoutePlan, request: Request) -> None:
        self.plan = plan
        self.policy: Policy = plan.policy
        self.request = request
        self.session: str | None = None
        self.older: PreviousPrints | None = None
        """The same request under the route's previous settings."""
        self.stored: bytes | None = None
        """The request as it is kept, where a worker may have to run it
        (`core/stored/requests.py`)."""
        self.status_at = ""
        """The address under which the status of requests is told."""
        self.worker: WorkerRun | None = None
        """A worker runs it, and holds the record already."""
        self.journal: Journal | None = None
        """Where an operation goes on that somebody held before."""
        self.seen: Fence | None = None
        """The fence that the record had before the claim."""
        self._origin: Origin | None = None

    @property
    def origin(self) -> Origin:
        """Where the key was used, for the people who operate the system.

        Without what the route says: a record names its route, and need not repeat it.
        """
        if self._origin is None:
            request, plan = self.request, self.plan
            method, path = request.method, request.path
            if path == plan.path and method == plan.method:
                method = path = ""
            self._origin = Origin(self.tenant, method, path, self.key)
        return self._origin

    @property
    def accept_encoding(self) -> str | None:
        return self.request.headers.get("accept-encoding")

    @property
    def cross_origin(self) -> bool:
        """A browser's script of another origin asks: it sees only the headers it is shown."""
        return "origin" in self.request.headers

    def find_key(self) -> None:
        """Look for a key that may be elsewhere than in one header: sets ``found``."""
        raise NotImplementedError

    def refusal(self, code: str, **said: Any) -> Response:
        """`refuse`, in the shape of the API."""
        return self.in_its_shape(refuse(code, **said))

    def in_its_shape(self, refused: Response) -> Response:
        """A refusal as the route's ``refusal=`` puts it; other answers are as they are."""
        return refused


class PreviousPrints(NamedTuple):
    """The identity and prints of a request under the route's previous settings."""

    identity: Identity
    prints: Prints


class ShadowRun:
    """What a request that is watched in shadow would have come to, and what its run left behind."""

    __slots__ = ("differs", "marked", "may_hold", "unrecorded", "would")

    def __init__(self) -> None:
        self.would: Answer | None = None
        """The answer that it would have got instead of its run; None: it would have run."""
        self.may_hold = False
        """Its claim was not answered: the record may be its own."""
        self.marked = False
        """It is on record that this run was begun beside another one."""
        self.differs = False
        """Its answer is not the one on record, or nobody knows whether it is."""
        self.unrecorded: BaseException | None = None
        """Why nothing could be written down of it."""


class WorkerRun:
    """A stored request that a worker sends through its application: no client waits for it."""

    __slots__ = (
        *("answer", "case", "fence", "last", "overdue", "reached", "request", "requeue"),
        *("started", "tells"),
    )

    def __init__(
        self,
        case: Case,
        fence: Fence,
        request: StoredRequest,
        started: float,
        requeue: Micros | None = None,
        overdue: bool = False,
        last: bool = False,
    ) -> None:
        self.case = case
        self.fence = fence
        self.request = request
        self.started = started
        """When the lease was asked for, by the clock of leases."""
        self.requeue = requeue
        """After which time a worker tries it again when nothing happened."""
        self.overdue = overdue
        """Workers have tried it for long enough."""
        self.last = last
        """Its time is up before a worker could try it again."""
        self.tells = False
        """Its endpoint tells when it is entered; an answer without that is somebody else's."""
        self.reached = False
        """Its guard has it, and settles its record, whatever its worker hears of that."""
        self.answer: Answer | None = None
        """What came of it; None when nobody waited for that, or it never reached its guard."""


# --- its run

T = TypeVar("T")

_NO_POINTS: Final = Journal()


class Progress:
    """The progress of one run: the recovery points it has passed, and what it says of itself.

    Written by the run's own handler, read by the exchange when the handler has answered.
    """

    __slots__ = (
        *("_passed", "_seen", "_turn", "journal", "repeating", "resource", "retention"),
        *("ended", "entered", "inside", "made", "raised", "returned"),
    )

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = _NO_POINTS if journal is None else journal
        self._passed = self._seen = 0
        self._turn = [None]
        self.repeating = False
        """The call whose intent is on record may simply be made again."""
        self.ended: str | None = None
        """What is said of a phase that ended its transaction itself: its writes may be there."""
        self.resource: str | None = None
        self.retention: Micros = 0
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        """What the handler is to await, by its name."""
        self.entered = False
        """The endpoint was called, where it tells that."""
        self.inside = 0
        """How many calls of the endpoint have not come back, where that is seen."""
        self.returned = False
        """The endpoint has returned: whatever is raised from here on, it has acted."""
        self.raised: list[BaseException] = []
        """What was raised on the way of the run, whatever answer was made of it."""

    @property
    def doubt(self) -> BaseException | None:
        """What was raised on the way and leaves a doubt, whatever came behind it."""
        return next((error for error in self.raised if leaves_doubt(error)), None)

    @contextmanager
    def alone(self, name: str, kind: PointKind) -> Generator[None]:
        """One point at a time: of two, the journal of one would lack what the other has sent."""
        try:
            self._turn.pop()  # of several threads one succeeds
        except IndexError:
            raise ConfigurationError(
                f"the {kind} {name!r} was begun inside of another point, or beside it: points come "
                "one after the other"
            ) from None
        try:
            yield
        finally:
            self._turn.append(None)

    def making(self, name: str, made: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Something that the handler is to await; until then nothing of it has happened."""
        self.made.append((name, made))
        return made

    def unfinished(self) -> str | None:
        """The name of what was made and never awaited, or not to its end.

        An answer that leaves it out would be kept, and it would never happen.
        """
        left: list[str] = []
        for name, made in self.made:
            it: Any = made
            if it.cr_frame is not None:
                left.append(name)
                if not (it.cr_running or it.cr_suspended):
                    made.close()  # Python need not warn of it, too
        return left[0] if left else None

    def meet(self, name: str, kind: PointKind) -> Point | None:
        """What is on record at this point; None where the run is the first to come so far."""
        points = self.journal.points
        self._seen = max(self._seen, self._passed + 1)
        if self._passed == len(points):
            return None
        point = points[self._passed]
        if (point.name, point.kind) != (name, kind):
            raise OperationChanged(
                f"the operation's journal has the {point.kind} {point.name!r} where the code now "
                f"has the {kind} {name!r}: points must keep their names and order while "
                "operations are under way"
            )
        return point

    def passing(self, journal: Journal) -> None:
        """Past the point that ``journal`` ends with, or the one met."""
        self.journal = journal
        self._passed += 1

    def missed(self) -> OperationChanged | None:
        """What is wrong where the handler has answered without coming to every point on record."""
        points = self.journal.points
        if self._seen >= len(points):
            return None
        missed = points[self._seen]
        return OperationChanged(
            f"the operation's journal has the {missed.kind} {missed.name!r}, which the code "
            "did not come to: points must not be removed while operations are under way"
        )

    @property
    def in_doubt(self) -> bool:
        """A call or a phase may have happened, and may not simply be made again."""
        call = self.journal.intent is not None and not self.repeating
        return call or self.ended is not None
