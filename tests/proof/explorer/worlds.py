"""Worlds: a policy, who takes part, what a handler may do, what may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as varied
from datetime import timedelta
from typing import Any, Final, Literal

from semel.core.exchange.exchange import Exchange
from semel.core.operations.maintenance import RouteScope
from semel.core.policy import Policy, RoutePlan, accepted, ietf, payments, stripe
from semel.core.terms import Terms
from semel.core.unknown.evidence import Evidence
from tests.core.world import call
from tests.proof.explorer.handlers import fence_of

SECOND: Final = 1_000_000
LEASE: Final = 60 * SECOND
PAST_LEASE: Final = LEASE + 1
PAST_RETENTION: Final = 49 * 3600 * SECOND

FAULTS: Final = frozenset({"dies", "applied", "lost", "refused", "late", "cancel"})
"""What may befall anybody at any step, one by one: its process is killed; its operation is applied
but unanswered, or not applied and unanswered, or surely not applied, or unanswered and applied
later; its caller goes away. That its lease passes while it stands still is a jump of the clock."""
OURS, ROUTE = "shop", "POST /payments"
KNOWN: Final = RouteScope(OURS, (ROUTE,))
"""What the reconciler and the worker know."""
OF_THE_STORE: Final = FAULTS - {"dies", "cancel"}


def ask_provider(_: object) -> Evidence:
    """Who is asked: the engine answers, from what the provider has seen."""
    raise AssertionError("nobody calls it")


@dataclass(frozen=True)
class World:
    name: str
    policy: Policy
    kinds: tuple[str, ...] = ("ok",)
    requests: int = 3
    faults: int = 1
    jumps: tuple[int, ...] = (PAST_LEASE,)
    breaks: frozenset[str] = FAULTS
    provider: Literal["final", "happened", None] = None
    """Whether the provider can be asked, and can also say that it did not happen and never will."""
    together: bool = False
    """All requests are in one process, where those who wait elect one to act."""
    strangers: tuple[int, ...] = ()
    """Requests with the same key and another payload."""
    elsewhere: tuple[int, ...] = ()
    """Requests with the same key and payload of another tenant."""
    foreign: tuple[int, ...] = ()
    """Requests with the same key and payload to another application, on the same store."""
    seen_before: bool = False
    repeatable: bool = False
    ways: tuple[str, ...] = ("did",)
    courses: tuple[str, ...] = ("go",)
    """Of an operation: it goes on to its answer, or *trips* when its call is made."""
    certain: bool = False
    """Nobody dies or leaves, no time passes, handlers are plain: no doubt may be left."""
    lives: int = 1
    """How much reconcilers and workers begin while faults are about."""
    evicts: bool = False
    """An operator may evict what is settled."""
    symmetric: bool = True
    """Requests that are alike arrive in the order of their names: others differ by names only."""
    reduced: bool = True
    """Steps that concern nobody else are not interleaved."""

    @property
    def resumable(self) -> bool:
        return self.policy.resumable

    @property
    def atomic(self) -> bool:
        return self.policy.mode == "atomic"

    def call(self, who: int, name: str) -> Exchange:
        body = b'{"amount": 2}' if who in self.strangers else b'{"amount": 1}'
        tenant = "other" if who in self.elsewhere else "one"
        ours, theirs = self.terms
        terms = theirs if who in self.foreign else ours
        asked: dict[str, Any] = {"seen_before": self.seen_before, "tenant": tenant}
        asked["application"] = terms.application
        made = call(body, self.policy, **asked)
        made.plan = RoutePlan(ROUTE, self.policy, terms)
        made.fence, made.status_at = fence_of(name), "/status"
        made.stored = b"the stored request" if self.policy.stores_request else None
        return made

    @property
    def terms(self) -> tuple[Terms, Terms]:
        """Those of the application whose reconciler and worker take part, and of the other one."""
        asks = self.policy.probe is not None
        ours, theirs = (self.policy.terms(it, ROUTE, probe=asks) for it in (OURS, "other"))
        return ours, theirs

    def with_(self, **changes: Any) -> World:
        return varied(self, **changes)


_SHORT: Final[dict[str, Any]] = {"give_up_after": timedelta(minutes=5)}
_FREED: Final[dict[str, Any]] = {"after_lapse": "release", "effects": "none", **_SHORT}
_CERTAIN: Final[dict[str, Any]] = {"certain": True, "breaks": OF_THE_STORE, "jumps": ()}
_HARMLESS: Final = ("declined", "500")
_FAILING: Final = ("ok", "500", "not-executed")
_DOUBTFUL: Final = ("ok", "doubt", "doubt!", "reset!")

WORLDS: Final[tuple[World, ...]] = (
    World("leased-ietf", ietf(**_SHORT), _FAILING),
    World("leased-ietf-doubt", ietf(probe=ask_provider, **_SHORT), _DOUBTFUL, provider="final"),
    World("leased-ietf-answers", ietf(**_SHORT), ("ok", "declined", "throttled", "bug")),
    World("leased-ietf-seen_before", ietf(**_SHORT), ("ok", "500"), seen_before=True),
    World("leased-stripe", stripe(**_SHORT), ("ok", "500", "500!", "bug!", "doubt!")),
    World("leased-accepted", accepted(probe=ask_provider, **_SHORT), _FAILING, provider="happened"),
    World(
        "leased-payments",
        payments(probe=ask_provider, **_SHORT),
        ("ok", "500", "500!", "not-executed"),
        provider="final",
    ),
    World(
        "leased-payments-together",
        payments(probe=ask_provider, **_SHORT),
        ("ok", "bug!", "not-executed"),
        provider="final",
        together=True,
    ),
    World("leased-payments-nobody", payments(probe=None, **_SHORT), ("ok", "500!", "reset")),
    World("leased-release", ietf(**_FREED), _HARMLESS),
    World("leased-stripe-release", stripe(**_FREED), _HARMLESS),
    World("leased-accepted-release", accepted(**_FREED), _HARMLESS),
    World(
        "leased-payments-release",
        payments(probe=ask_provider, **_FREED),
        _HARMLESS,
        provider="final",
    ),
    World("leased-stream", ietf(response="stream", **_SHORT), ("stream", "500")),
    World(
        "leased-resume-asked",
        payments(mode="resumable", probe=ask_provider, **_SHORT),
        provider="final",
        ways=("did", "not-sent", "reset!"),
    ),
    World(
        "leased-resume-repeatable",
        ietf(mode="resumable", **_SHORT),
        repeatable=True,
        ways=("did", "reset"),
    ),
    World(
        "leased-resume-trips",
        ietf(mode="resumable", probe=ask_provider, **_SHORT),
        provider="final",
        courses=("go", "trips"),
    ),
    World("leased-stripe-resume", stripe(mode="resumable", **_SHORT), repeatable=True),
    World(
        "leased-accepted-resume",
        accepted(mode="resumable", probe=ask_provider, **_SHORT),
        provider="happened",
    ),
    World("leased-certain", ietf(**_SHORT), _FAILING, **_CERTAIN),
    World("leased-mismatch", ietf(**_SHORT), ("ok", "500"), strangers=(2,)),
    World("leased-tenants", ietf(**_SHORT), ("ok", "500"), elsewhere=(2,)),
    World(
        "leased-applications",
        payments(probe=ask_provider, **_SHORT),
        ("ok", "500!"),
        provider="final",
        foreign=(2,),
    ),
    World("leased-retention", ietf(**_SHORT), ("ok", "500"), jumps=(PAST_RETENTION,)),
    World(
        "leased-zombie-past-retention",
        ietf(probe=ask_provider, **_SHORT),
        ("ok", "declined"),
        faults=0,
        jumps=(PAST_LEASE, PAST_RETENTION),
        provider="final",
    ),
    World("leased-renewed", ietf(**_SHORT), jumps=(LEASE * 2 // 3, LEASE * 2 // 3)),
    World("leased-evicted", ietf(**_SHORT), ("ok", "500"), evicts=True),
    World("atomic-ietf", ietf(mode="atomic", **_SHORT), ("written", "500w", "declined")),
    World("atomic-stripe", stripe(mode="atomic", **_SHORT), ("written", "500w")),
    World("atomic-accepted", accepted(mode="atomic", **_SHORT), ("written", "500w")),
    World(
        "atomic-payments",
        payments(mode="atomic", probe=ask_provider, **_SHORT),
        ("written", "500w"),
        provider="final",
    ),
    World(
        "atomic-doubt",
        ietf(mode="atomic", probe=ask_provider, **_SHORT),
        # Without an effect: a call outside that dies with its transaction is nobody's promise.
        ("written", "doubt"),
        provider="final",
    ),
    World("atomic-certain", ietf(mode="atomic", **_SHORT), ("written", "500w"), **_CERTAIN),
    World(
        "deferred-accepted",
        accepted(mode="deferred", required=True, probe=ask_provider, **_SHORT),
        ("ok", "500", "not-executed"),
        provider="final",
        lives=3,
    ),
    World(
        "deferred-release",
        accepted(mode="deferred", required=True, **_FREED),
        _HARMLESS,
        lives=3,
    ),
    World(
        "deferred-resume",
        accepted(
            mode="deferred", required=True, after_lapse="resume", probe=ask_provider, **_SHORT
        ),
        provider="final",
        ways=("did", "reset!"),
        lives=3,
    ),
    World(
        "deferred-certain",
        accepted(mode="deferred", required=True, **_SHORT),
        ("ok", "500", "not-executed"),
        lives=3,
        **_CERTAIN,
    ),
    World(
        "deferred-abandoned",
        accepted(mode="deferred", required=True, **_SHORT),
        ("ok",),
        jumps=(3601 * SECOND,),
        lives=3,
    ),
)

BY_NAME: Final = {world.name: world for world in WORLDS}
