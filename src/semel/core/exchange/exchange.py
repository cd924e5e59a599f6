"""One keyed request, from its head to its answer: the one object that everybody adds to.

An adapter derives a class of its own from `Exchange`, with the way it calls its application. The
decisions are two flows that take it: `core/exchange/claim.py` ends with the lease or with an
answer, and `core/exchange/settle.py` takes what the application came to. Between them the adapter
calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.core.records import Origin

if TYPE_CHECKING:
    from semel.core.exchange.answers import Answer
    from semel.core.policy import Policy, RoutePlan
    from semel.core.records import Case, Fence, Identity, Micros, Request
    from semel.core.recovery.journal import Journal
    from semel.core.request.comparison import Prints
    from semel.core.stored.requests import StoredRequest


class Exchange:
    """What is known of one request; `core/exchange/admit.py` says where it comes from."""

    __slots__ = (
        *("fence", "fresh_until", "identity", "key", "older", "plan", "policy", "prints"),
        *("request", "sent", "session", "tenant"),
        *("_origin", "can_ask", "seen_before", "status_at", "stored", "worker"),
        *("journal", "seen"),
    )

    identity: Identity
    fence: Fence
    """Made before the first try."""
    prints: Prints
    """What the body means."""
    sent: str
    """The key as it was sent; a policy's format may make it another, such as lower-case."""
    key: str
    tenant: str
    fresh_until: Micros | None
    seen_before: bool
    """This process has probably met the key: look before claiming."""
    can_ask: bool
    """There is somebody to ask what became of a run whose outcome is unknown."""

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
        """Where the key was used, for the people who operate the system."""
        if self._origin is None:
            request = self.request
            self._origin = Origin(self.tenant, request.method, request.path, self.key)
        return self._origin

    @property
    def accept_encoding(self) -> str | None:
        return self.request.headers.get("accept-encoding")

    @property
    def cross_origin(self) -> bool:
        """A browser's script of another origin asks: it sees only the headers it is shown."""
        return "origin" in self.request.headers

    def status_of(self, identity: Identity) -> str:
        """Where the status of a request is told."""
        return f"{self.status_at}/{identity.hex()}"


class PreviousPrints:
    """The identity and prints of a request under the route's previous settings."""

    __slots__ = ("identity", "prints")

    def __init__(self, identity: Identity, prints: Prints) -> None:
        self.identity = identity
        self.prints = prints


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
