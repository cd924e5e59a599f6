"""From a request to an exchange: who asks, with which key, for what.

Two steps, because the body is only read for requests that take part: `admit` looks at the head,
`identify` adds what the body means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

from semel.core import keys
from semel.core.exchange import Exchange, Older
from semel.core.frozen import frozen
from semel.core.keys import Malformed
from semel.core.model import Fence, Identity, Micros, Request, Response
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.prints import Prints
from semel.core.problems import refuse
from semel.errors import ConfigurationError

Tenant: TypeAlias = Callable[[Request], Any] | None
"""Who is asking: a function of the authenticated request, or None for a single tenant."""


@frozen
class Refused:
    """Turned away at the door; ``error`` is the operator's own code failing, to be logged."""

    response: Response
    error: Exception | None = None


PASSES: Final = Refused(Response(204, (), b""))
"""Not refused: the request takes no part, and passes untouched."""


def _takes_part(request: Request, policy: Policy, keyed: bool) -> Refused:
    if request.method in policy.methods:
        return Refused(refuse("missing-key")) if policy.required else PASSES
    refused = keyed and request.method in SAFE_METHODS and policy.safe_methods == "refuse"
    return Refused(refuse("key-on-safe-method")) if refused else PASSES


def admit(ex: Exchange, tenant: Tenant) -> Refused | None:
    """Read the key of a request, and ask who sends it; or refuse it, or let it pass (`PASSES`)."""
    policy, request = ex.policy, ex.request
    headers = request.headers
    line = headers.first.get(b"idempotency-key")
    if line is None or request.method not in policy.methods:
        return _takes_part(request, policy, line is not None)
    usual = policy.key == "opaque" and not policy.strict and not headers.repeated
    if usual and keys.usual_key(line):
        ex.sent = ex.key = line.decode("ascii")
    elif (refused := _read_key(ex)) is not None:
        return refused
    if policy.personal_data == "refuse" and keys.looks_like_personal_data(ex.key):
        detail = "The key looks like personal data. Use a random key, such as a UUID."
        return Refused(refuse("malformed-key", detail=detail))
    who = "" if tenant is None else who_asks(request, tenant)
    if isinstance(who, Refused):
        return who
    ex.tenant = who
    return None if policy.session is None else _bind(ex, policy.session)


def _read_key(ex: Exchange) -> Refused | None:
    policy = ex.policy
    try:
        lines = ex.request.headers.all("idempotency-key")
        sent = keys.parse_key(lines, strict=policy.strict)
        key = sent if isinstance(sent, Malformed) else keys.check_format(sent, policy.key)
    except Exception as error:  # key= may be the operator's own function
        return Refused(refuse("misconfigured"), error)
    if isinstance(sent, Malformed) or isinstance(key, Malformed):
        reason = key.reason if isinstance(key, Malformed) else ""
        return Refused(refuse("malformed-key", detail=reason))
    ex.sent, ex.key = sent, key
    return None


def _bind(ex: Exchange, session: Callable[[Request], str | None]) -> Refused | None:
    try:
        ex.session = session(ex.request)
    except Exception as error:
        return _unanswered(error)
    return None


def identify(
    ex: Exchange,
    body: bytes | Iterable[bytes],
    fence: Fence,
    familiar: Callable[[Identity], bool] = lambda identity: False,
) -> None:
    """Add what the body means, and by that which record it is; it must bear being read again.

    ``familiar`` tells of an identity whether it was probably met before.
    """
    policy, request = ex.policy, ex.request
    if policy.previous is not None:
        older = Prints(request, body, policy.previous.fingerprint)
        ex.older = Older(identity_of(ex, policy.previous), older)
    ex.fence, ex.prints = fence, Prints(request, body, policy.fingerprint)
    ex.identity = identity = _identity(ex, policy, ex.session, ex.key)
    ex.familiar = familiar(identity)
    ex.can_ask = policy.probe is not None
    ex.fresh_until = None
    if policy.age_micros is not None and (policy.made_at is not None or len(ex.key) == 36):
        ex.fresh_until = _fresh_until(ex, policy.age_micros)  # 36: it may be a UUID


def identity_of(ex: Exchange, policy: Policy) -> Identity:
    """Under which identity the request is known by a policy: its own, or that of before."""
    if policy is ex.policy:
        return _identity(ex, policy, ex.session, ex.key)
    checked = keys.check_format(ex.sent, policy.key)
    key = ex.sent if isinstance(checked, Malformed) else checked  # malformed: it never had one
    session = policy.session(ex.request) if policy.session is not None else None
    return _identity(ex, policy, session, key)


def _identity(ex: Exchange, policy: Policy, session: str | None, key: str) -> Identity:
    request, application = ex.request, ex.plan.application
    place = (ex.tenant, request.method, request.path, policy.scope)
    return Identity(keys.identify(*place, session, application, key))


def _fresh_until(ex: Exchange, age: Micros) -> Micros | None:
    """A UUIDv7 tells its age: past retention its first use may have been forgotten.

    A time to come proves nothing, so a key that names one is as good as one that names none.
    """
    born = keys.uuid7_milliseconds(ex.key)
    times = [] if born is None else [born * 1000]
    if ex.policy.made_at is not None:
        times += _moment(ex.policy.made_at(ex.request))
    return min(times) + age if times else None


def who_asks(request: Request, tenant: Tenant) -> str | Refused:
    """The tenant of an authenticated request, or why there is none."""
    if tenant is None:
        return ""
    try:
        who = _principal(tenant(request))
    except Exception as error:
        return _unanswered(error)
    return Refused(refuse("tenant-missing")) if who is None else who


_MISTAKES: Final = (
    *(ArithmeticError, AssertionError, ImportError, NameError, NotImplementedError, TypeError),
    ConfigurationError,
)
_PAUSE: Final = 1_000_000


def _unanswered(error: Exception) -> Refused:
    """What it means to a caller that ``tenant=`` or ``session=`` raised.

    Nothing there to look at is nobody: authentication found none, as on a route that is open to
    all. Of other errors some are mistakes, for the operator; the rest are outages of whoever was
    asked, such as the database of users, and pass.
    """
    if isinstance(error, LookupError | AttributeError) or _says_nobody(error):
        return Refused(refuse("tenant-missing"), error)
    if isinstance(error, _MISTAKES):
        return Refused(refuse("misconfigured"), error)
    return Refused(refuse("not-executed", retry_after=_PAUSE), error)


def _says_nobody(error: Exception) -> bool:
    """The exceptions by which frameworks answer 401 and 403 say so in one of two attributes."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    return status in (401, 403)


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
    if not isinstance(value, str | int) and not _is_uuid(value):
        raise TypeError(
            f"a tenant is text, bytes, a number or a UUID, not {type(value).__name__} (tenant=)"
        )
    return str(value) or None


def _moment(made: Any) -> list[Micros]:
    """What ``made_at=`` returned."""
    if made is None:
        return []
    if not isinstance(made, datetime) or made.tzinfo is None:
        raise TypeError("made_at= must return a datetime with a time zone, or None")
    return [int(made.timestamp() * 1_000_000)]


def _is_uuid(value: object) -> bool:
    from uuid import UUID  # not loaded before somebody has one

    return isinstance(value, UUID)
