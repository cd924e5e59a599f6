"""Routes in shadow, as adapters meet them: what is counted, and what passes untouched.

What becomes of records is decided in `core/exchange/shadow.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.core.exchange.admit import Refusal
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.exchange import ShadowRun
from semel.core.exchange.problems import refuse
from semel.core.request.comparison import LARGE
from semel.runtime.events import DEBUG, short
from semel.runtime.leases import new_fence
from semel.web.body import size_of

if TYPE_CHECKING:
    from semel.web.exchange import WebExchange

NOT_WHOLE: Final = frozenset({"malformed-body"})
"""A body that was cut off: its client has left, and no handler is given half of a request."""
_CONFLICTS: Final = frozenset({Outcome.IN_FLIGHT, Outcome.UNKNOWN})
_REPLAYS: Final = frozenset({Outcome.REPLAYED})


# ── requests that take no part ────────────────────────────────────────────────────────────────────


def let_pass(ex: WebExchange, admitted: Refusal | bool) -> bool:
    """Count a request that would be refused at the door, or has no key; it takes no part."""
    if ex.request.method not in ex.policy.methods:
        return False
    code = admitted.response.problem.code if isinstance(admitted, Refusal) else "missing-key"
    label, method = ex.plan.label, ex.request.method
    counts, events = ex.runtime.shadow, ex.runtime.events
    counts.count(label, "unkeyed" if code == "missing-key" else "keyed")
    if code == "missing-key":
        events.emit("shadow.unkeyed", route=label, method=method)
    if isinstance(admitted, Refusal):
        status = admitted.response.status
        counts.count(label, f"would_refuse {code}")
        events.emit(
            "shadow.would_refuse",
            error=admitted.error,
            route=label,
            method=method,
            code=code,
            status=status,
        )
    return False


def looks(ex: WebExchange) -> bool:
    """Whether a request that takes no part is compared with others: its body is short enough."""
    headers = ex.request.headers
    if not ex.policy.shadow or ex.request.method not in ex.policy.methods:
        return False
    keyed = ex.policy.key_header in headers.first or getattr(ex, "found", None) is not None
    if keyed or "transfer-encoding" in headers:
        return False
    length = headers.get("content-length") or "0"
    return length.isdecimal() and len(length) < 9 and int(length) < LARGE


# ── keyed requests ────────────────────────────────────────────────────────────────────────────────


def cannot_be_named(ex: WebExchange, failed: Answer) -> None:
    """What a request means could not be found out: it runs, and nothing is put on record."""
    ex.shadow = ShadowRun()
    ex.shadow.would, ex.shadow.unrecorded = failed, failed.error
    ex.can_ask = ex.seen_before = False
    if not hasattr(ex, "fence"):
        ex.fence = new_fence()


def watch(ex: WebExchange) -> None:
    """Before the claim of a request: with a body that is too large nothing is claimed."""
    if not hasattr(ex, "shadow"):
        ex.shadow = ShadowRun()
    body = getattr(ex, "body", b"")
    if ex.shadow.would is None and size_of(body) > ex.policy.max_request_body:
        ex.shadow.would = Answer(refuse("body-too-large"), Outcome.MISCONFIGURED)


def tell_shadow(ex: WebExchange) -> bool:
    """Count what a keyed request has come to; True: it would not have run, and all is told."""
    run, counts, events = ex.shadow, ex.runtime.shadow, ex.runtime.events
    label, method = ex.plan.label, ex.request.method
    identity = getattr(ex, "identity", None)
    which = None if identity is None else short(identity)
    counts.count(label, "keyed")
    if run.differs:
        counts.count(label, "differs")
        events.emit("shadow.differs", route=label, method=method, identity=which)
    if run.unrecorded is not None:
        counts.count(label, "unrecorded")
        resting = DEBUG if ex.runtime.breaker.is_open else None
        error = run.unrecorded
        events.emit(
            "shadow.unrecorded",
            level=resting,
            error=error,
            route=label,
            method=method,
            identity=which,
        )
    if run.would is None:
        return False
    word, code = _would(run.would)
    status = None if run.would.response is None else run.would.response.status
    counts.count(label, f"{word} {code}" if word == "would_refuse" else word)
    events.emit(f"shadow.{word}", route=label, method=method, code=code, status=status)
    return True


def _would(answer: Answer) -> tuple[str, str]:
    """What enforcement would have done, and the code of its refusal."""
    problem = getattr(answer.response, "problem", None)
    code = answer.outcome.value if problem is None else problem.code
    if answer.outcome in _REPLAYS:
        return "would_replay", code
    return "would_conflict" if answer.outcome in _CONFLICTS else "would_refuse", code
