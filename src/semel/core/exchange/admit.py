"""From a request to an exchange: who asks, with which key, for what.

Two steps, because the body is only read for requests that take part: `admit` looks at the head and
names the record, `add_body` adds what the body means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.exchange import Exchange, PreviousPrints
from semel.core.exchange.problems import ProblemResponse, refuse
from semel.core.frozen import frozen
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.records import Fence, Identity, Micros, Request
from semel.core.request import key_places, keys
from semel.core.request.comparison import Prints
from semel.core.request.key_places import Unreadable, in_words
from semel.core.request.keys import Malformed
from semel.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from uuid import UUID

Caller: TypeAlias = "str | bytes | int | UUID | None"
"""A verified principal; None: nobody."""
Tenant: TypeAlias = "Callable[[Request], Caller | Awaitable[Caller]] | None"
"""Who is asking: a function of the authenticated request, or None for a single tenant."""


@frozen
class Refusal:
    """Turned away at the door; ``error`` is the operator's own code failing, to be logged."""

    response: ProblemResponse
    error: Exception | None = None


def admit(ex: Exchange, tenant: Tenant) -> Refusal | bool:
    """Read the key of a request, and ask who sends it: with them its record has a name.

    Or refuse it; False: it takes no part, and passes untouched.
    """
    policy, request = ex.policy, ex.request
    headers = request.headers
    line = headers.first.get(policy.key_header)
    if line is None or request.method not in policy.methods:
        found = None if policy.key_header else _look_closer(ex)
        if found is None:
            return _without_key(request, policy)
        if isinstance(found, Refusal):
            return found
    elif policy.takes_usual_keys and not headers.repeated and keys.usual_key(line):
        ex.sent = ex.key = line.decode("ascii")
    elif (refused := _read_key(ex)) is not None:
        return refused
    if tenant is None:
        ex.tenant = ""
    elif isinstance(who := who_asks(request, tenant), Refusal):
        return who
    else:
        ex.tenant = who
    if policy.session is not None:
        try:
            ex.session = _session_of(request, policy)
        except Exception as error:
            return _unanswered(error)
    name_record(ex)
    return True


def _session_of(request: Request, policy: Policy) -> str | None:
    """The session that a key counts in; None: it counts in all of them."""
    session: object = None if policy.session is None else policy.session(request)
    if session is not None and not isinstance(session, str):
        raise TypeError(f"session= must return text or None, not {type(session).__name__}")
    return session


def _without_key(request: Request, policy: Policy) -> Refusal | bool:
    """A request that has no key, or none that counts here."""
    places = policy.key_places
    if request.method in policy.methods:
        if not policy.required:
            return False
        where = " or in ".join(map(in_words, places.listed))
        said = None if policy.key_header == b"idempotency-key" else _MISSING.format(where)
        return Refusal(refuse("missing-key", detail=said))
    safe = request.method in SAFE_METHODS and policy.safe_methods == "refuse"
    refused = safe and any(name in request.headers for name in places.headers)
    return Refusal(refuse("key-on-safe-method")) if refused else False


_MISSING: Final = (
    "This operation must be sent with a key, in {}. Make one key for each logical operation and "
    "send the same key on every retry."
)


def _read_key(ex: Exchange) -> Refusal | None:
    policy = ex.policy
    name = policy.key_places.headers[0]
    lines = ex.request.headers.all(name)
    spelled = policy.key_places.spelled(name)
    return _take(ex, keys.parse_key(lines, strict=policy.strict, name=spelled))


def find_key(ex: Exchange, body: bytes) -> None:
    """Look into every place of the policy; `admit` takes what is found."""
    policy = ex.policy
    try:
        found = key_places.find_key(policy.key_places, ex.request, body, strict=policy.strict)
    except Exception as error:  # key_from= may be the operator's own function
        ex.found = Refusal(refuse("misconfigured"), error)
        return
    if isinstance(found, Unreadable):
        ex.found = Refusal(refuse("unreadable-body", detail=found.reason))
    elif isinstance(found, Malformed):
        ex.found = Refusal(refuse("malformed-key", detail=found.reason))
    else:
        ex.found = found


def _look_closer(ex: Exchange) -> Refusal | str | None:
    """The key that is in some place of the policy, and is taken; of a large body it is known."""
    if ex.request.method not in ex.policy.methods:
        return None
    if not hasattr(ex, "found"):
        ex.find_key()
    found = ex.found
    return (_take(ex, found) or found) if isinstance(found, str) else found


def _take(ex: Exchange, sent: str | Malformed) -> Refusal | None:
    """The key, if the route's format allows it."""
    policy = ex.policy
    try:
        key = sent if isinstance(sent, Malformed) else keys.check_format(sent, policy.key)
    except Exception as error:  # key= may be the operator's own function
        return Refusal(refuse("misconfigured"), error)
    if isinstance(sent, Malformed) or isinstance(key, Malformed):
        reason = key.reason if isinstance(key, Malformed) else ""
        return Refusal(refuse("malformed-key", detail=reason))
    ex.sent, ex.key = sent, key
    if policy.personal_data == "refuse" and keys.looks_like_personal_data(key):
        detail = "The key looks like personal data. Use a random key, such as a UUID."
        return Refusal(refuse("malformed-key", detail=detail))
    return None


def name_record(ex: Exchange) -> None:
    """Who asks, with which key, for what: that is the identity."""
    request, scope, application = ex.request, ex.policy.scope, ex.plan.application
    path, session = request.path, ex.session
    named: Any = keys.identify(ex.tenant, request.method, path, scope, session, application, ex.key)
    ex.identity = named


def add_body(ex: Exchange, body: bytes | Iterable[bytes], fence: Fence) -> None:
    """What the body means, under the fence of this try; it must bear being read again."""
    policy = ex.policy
    if policy.previous is not None:
        older = Prints(ex.request, body, policy.previous.rule)
        ex.older = PreviousPrints(_identity_before(ex, policy.previous), older)
    ex.fence, ex.prints = fence, Prints(ex.request, body, policy.rule)
    ex.can_ask = policy.probe is not None
    ex.fresh_until = None
    if policy.age_micros is not None and (policy.made_at is not None or len(ex.key) == 36):
        ex.fresh_until = _fresh_until(ex, policy.age_micros)  # 36: it may be a UUID


def demand_payload(ex: Exchange) -> ProblemResponse | None:
    """A refusal where ``payload_from=`` finds nothing: requests that differ would pass for one."""
    payload = ex.policy.payload
    found = ex.prints.fingerprint
    if found.kind != "raw" and len(found.fields) == len(payload):
        return None
    where = " and in ".join(map(in_words, payload))
    return refuse(
        "unreadable-body",
        detail=f"The request is looked for in {where}, and that cannot be read, or is not there.",
    )


def _identity_before(ex: Exchange, policy: Policy) -> Identity:
    """Under which identity the request was known by the policy of before."""
    request = ex.request
    key = keys.check_format(ex.sent, policy.key)
    if isinstance(key, Malformed):
        key = ex.sent  # it never had one
    session = _session_of(request, policy)
    place = (ex.tenant, request.method, request.path, policy.scope)
    return Identity(keys.identify(*place, session, ex.plan.application, key))


def _fresh_until(ex: Exchange, age: Micros) -> Micros | None:
    """A UUIDv7 tells its age: past retention its first use may have been forgotten.

    A time to come proves nothing, so a key that names one is as good as one that names none.
    """
    born = keys.uuid7_milliseconds(ex.key)
    times = [] if born is None else [born * 1000]
    made: Any = None if ex.policy.made_at is None else ex.policy.made_at(ex.request)
    if made is not None:
        if not isinstance(made, datetime) or made.tzinfo is None:
            raise TypeError("made_at= must return a datetime with a time zone, or None")
        times.append(int(made.timestamp() * 1_000_000))
    return min(times) + age if times else None


def who_asks(request: Request, tenant: Tenant) -> str | Refusal:
    """The tenant of an authenticated request, or why there is none."""
    if tenant is None:
        return ""
    try:
        who = _principal(tenant(request))
    except Exception as error:
        return _unanswered(error)
    return Refusal(refuse("tenant-missing")) if who is None else who


_MISTAKES: Final = (
    *(ArithmeticError, AssertionError, ImportError, NameError, NotImplementedError, TypeError),
    ConfigurationError,
)
_PAUSE: Final = 1_000_000


def _unanswered(error: Exception) -> Refusal:
    """What it means to a caller that ``tenant=`` or ``session=`` raised.

    Nothing there to look at is nobody: authentication found none, as on a route that is open to
    all. Of other errors some are mistakes, for the operator; the rest are outages of whoever was
    asked, such as the database of users, and pass.
    """
    # The exceptions by which frameworks answer 401 and 403 say so in one of two attributes.
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    if isinstance(error, LookupError | AttributeError) or status in (401, 403):
        return Refusal(refuse("tenant-missing"), error)
    if isinstance(error, _MISTAKES):
        return Refusal(refuse("misconfigured"), error)
    return Refusal(refuse("not-executed", retry_after=_PAUSE), error)


def named_tenant(given: str | int | None, tenant: Tenant) -> str:
    """The tenant that code of the application's own names, where there is no request.

    An empty one is a mistake and no tenant: all who lack a name would share it.
    """
    if given is None and tenant is None:
        return ""
    who = _principal(given)
    if who is None:
        raise ConfigurationError(f"say whose it is with tenant=: {given!r} is nobody")
    return who


def _principal(value: Any) -> str | None:
    """A verified principal as text; nothing at all is nobody, never a shared tenant.

    Other objects are refused: the text of many, a coroutine's too, differs from request to request,
    and every retry would then be a first one.
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if not isinstance(value, str | int):
        from uuid import UUID  # not loaded before somebody has one

        if not isinstance(value, UUID):
            found = type(value).__name__
            raise TypeError(f"a tenant is text, bytes, a number or a UUID, not {found} (tenant=)")
    return str(value) or None


# --- answers of requests that were turned away before their key was looked up

_RESTING: Final = StoreUnavailable("it gave no answer lately and is left alone", applied=False)


class TurnedAway(Exception):
    """Thrown into a flow that may not go on, since its tenant is over a limit."""

    def __init__(self, code: str, wait: Micros) -> None:
        super().__init__(code)
        self.code = code
        self.wait = wait


def throttled(ex: Exchange, code: str, wait: Micros) -> Answer:
    """Over a limit: nothing was executed, and nothing is left behind."""
    return Answer(ex.refusal(code, retry_after=wait), Outcome.THROTTLED)


def resting(ex: Exchange, wait: Micros) -> Answer:
    """Fail closed without asking: the store gave no answer lately and is left alone."""
    response = ex.refusal("store-unavailable", retry_after=max(ex.policy.retry_micros, wait))
    return Answer(response, Outcome.STORE_ERROR, _RESTING)
