"""From a request to a call that can be exchanged: who asks, with which key, for what.

Two steps, because the body is only read for requests that take part: `admit` looks at the head,
`Ticket.call` adds what the body means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

from semel.core import keys
from semel.core.fingerprint import Meaning, Recipe
from semel.core.frozen import frozen
from semel.core.keys import Malformed, Scope
from semel.core.model import Fence, Identity, Micros, OnLapse, Origin, Request, Response
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.prints import Prints
from semel.core.problems import refuse
from semel.core.terms import NO_TERMS, TermsId
from semel.errors import ConfigurationError

Tenant: TypeAlias = Callable[[Request], Any] | None
"""Who is asking: a function of the authenticated request, or None for a single tenant."""


@frozen
class Predecessor:
    """The same request under the route's previous settings."""

    identity: Identity
    prints: Prints


@frozen
class Call:
    """All that an exchange needs to know of a request."""

    policy: Policy
    identity: Identity
    fence: Fence
    prints: Prints
    origin: Origin
    fresh_until: Micros | None
    accept_encoding: str | None
    cross_origin: bool = False
    """A browser's script of another origin asks: it sees only the headers it is shown."""
    predecessor: Predecessor | None = None
    familiar: bool = False
    """This process has probably met the key: look before claiming."""
    request: bytes | None = None
    """To be stored, where a worker may have to run it (`core/stored.py`)."""
    status_at: str = ""
    """The address under which the status of requests is told."""
    can_ask: bool = False
    """There is somebody to ask what became of a run whose outcome is unknown."""
    alone: bool = False
    """A worker runs it: no client waits for the answer."""
    overdue: bool = False
    """Workers have tried it for long enough."""
    last: bool = False
    """Its time is up before a worker could try it again."""
    tells: bool = False
    """Its endpoint tells when it is entered; an answer without that is somebody else's."""
    requeue: Micros | None = None
    """After which time a worker tries it again when nothing happened."""
    terms: TermsId = NO_TERMS
    """Under which a record is made."""

    def status_of(self, identity: Identity) -> str:
        """Where the status of a request is told."""
        return f"{self.status_at}/{identity.hex()}"

    @property
    def resumable(self) -> bool:
        """The handler is an operation with recovery points."""
        return self.policy.lapse is OnLapse.RESUME


@frozen
class Refused:
    """Turned away at the door; ``error`` is the operator's own code failing, to be logged."""

    response: Response
    error: Exception | None = None


@frozen
class Ticket:
    """A request that takes part; its body has not been read yet."""

    request: Request
    policy: Policy
    sent: str
    """The key as it was sent; a policy's format may make it another, such as lower-case."""
    key: str
    tenant: str
    session: str | None
    suspicious: bool
    """The key looks like personal data; worth a warning, never echoed."""
    application: str = ""

    def identity(self, policy: Policy) -> Identity:
        request, session = self.request, self._session(policy)
        place = (self.tenant, request.method, request.path)
        scope = Scope(*place, policy.scope, session, self.application)
        return Identity(keys.identity(scope, self._key(policy)))

    def _key(self, policy: Policy) -> str:
        if policy is self.policy:
            return self.key
        key = keys.check_format(self.sent, policy.key)
        return self.sent if isinstance(key, Malformed) else key  # malformed: it never had one

    def _session(self, policy: Policy) -> str | None:
        if policy is self.policy:
            return self.session
        return policy.session(self.request) if policy.session is not None else None

    def call(
        self,
        body: Iterable[bytes],
        fence: Fence,
        familiar: Callable[[Identity], bool] = lambda identity: False,
        terms: TermsId = NO_TERMS,
    ) -> Call:
        """Add what the body means; it must bear being read again.

        ``familiar`` tells of an identity whether it was probably met before.
        """
        request, policy, previous = self.request, self.policy, self.policy.previous
        predecessor = None
        if previous is not None:
            older = self._prints(body, previous.fingerprint)
            predecessor = Predecessor(self.identity(previous), older)
        identity = self.identity(policy)
        return Call(
            policy=policy,
            identity=identity,
            fence=fence,
            prints=self._prints(body, policy.fingerprint),
            origin=Origin(self.tenant, request.method, request.path, self.key),
            fresh_until=self._fresh_until(),
            accept_encoding=request.headers.get("accept-encoding"),
            cross_origin="origin" in request.headers,
            predecessor=predecessor,
            familiar=familiar(identity),
            can_ask=policy.probe is not None,
            terms=terms,
        )

    def _prints(self, body: Iterable[bytes], recipe: Recipe) -> Prints:
        request = self.request
        meaning = Meaning(
            method=request.method,
            path=request.escaped or request.path,
            query=request.query,
            content_type=_joined(request, "content-type"),
            content_encoding=_joined(request, "content-encoding"),
            body=body,
            request=request,
        )
        return Prints(meaning, recipe)

    def _fresh_until(self) -> Micros | None:
        """A UUIDv7 tells its age: past retention its first use may have been forgotten.

        A time to come proves nothing, so a key that names one is as good as one that names none.
        """
        age = self.policy.age_micros
        if age is None:
            return None
        born = keys.uuid7_milliseconds(self.key)
        times = [] if born is None else [born * 1000]
        if self.policy.made_at is not None:
            times += _moment(self.policy.made_at(self.request))
        return min(times) + age if times else None


def admit(
    request: Request, policy: Policy, tenant: Tenant, application: str = ""
) -> Ticket | Refused | None:
    """Whether a request takes part; None lets it pass untouched."""
    values = request.headers.all("idempotency-key")
    if request.method not in policy.methods:
        refused = values and request.method in SAFE_METHODS and policy.safe_methods == "refuse"
        return Refused(refuse("key-on-safe-method")) if refused else None
    if not values:
        return Refused(refuse("missing-key")) if policy.required else None
    try:
        return _ticket(request, policy, tenant, application, values)
    except Exception as error:  # key= may be the operator's own function
        return Refused(refuse("misconfigured"), error)


def _ticket(
    request: Request, policy: Policy, tenant: Tenant, application: str, values: tuple[bytes, ...]
) -> Ticket | Refused:
    sent = keys.parse_key(values, strict=policy.strict)
    key = sent if isinstance(sent, Malformed) else keys.check_format(sent, policy.key)
    if isinstance(sent, Malformed) or isinstance(key, Malformed):
        reason = key.reason if isinstance(key, Malformed) else ""
        return Refused(refuse("malformed-key", detail=reason))
    suspicious = policy.personal_data != "allow" and keys.looks_like_personal_data(key)
    if suspicious and policy.personal_data == "refuse":
        detail = "The key looks like personal data. Use a random key, such as a UUID."
        return Refused(refuse("malformed-key", detail=detail))
    who = who_asks(request, tenant)
    if isinstance(who, Refused):
        return who
    try:
        session = policy.session(request) if policy.session is not None else None
    except Exception as error:
        return _unanswered(error)
    return Ticket(request, policy, sent, key, who, session, suspicious, application)


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


def _joined(request: Request, name: str) -> str | None:
    """All lines of a header: which of several an application reads is its own affair."""
    lines = request.headers.all(name)
    return b", ".join(lines).decode("latin-1") if lines else None


def _is_uuid(value: object) -> bool:
    from uuid import UUID  # not loaded before somebody has one

    return isinstance(value, UUID)
