"""The nouns: what a record is, what a request and a response are.

Times are integers: microseconds since 1970 by the *store's* clock. Durations are microseconds too.
Only policies, which people write, speak of ``timedelta``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from enum import StrEnum
from typing import Any, Final, NewType, TypeAlias, TypeVar, cast, overload

from semel.core.frozen import frozen, value
from semel.core.terms import Terms
from semel.errors import ConfigurationError

T = TypeVar("T")

Identity = NewType("Identity", bytes)
"""32 bytes: the primary key of every store."""

Fence = NewType("Fence", bytes)
"""128 random bits that prove who holds a lease; unique for all time, made before the first try."""

Micros: TypeAlias = int
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = tuple[Header, ...]


class State(StrEnum):
    """Where a record is in its life; `core/states.py` says how it gets from one to the next."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED_RETRYABLE = "failed_retryable"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


class OnLapse(StrEnum):
    """What becomes of a record whose lease ran out; recorded with the claim."""

    UNKNOWN = "unknown"
    RELEASE = "release"
    RESUME = "resume"


class Duty(StrEnum):
    """Who must look at a record next. Stores index their records by it, and by when that is."""

    LEASE = "lease"
    """The sweeper, when the lease has ended."""
    RESUME = "resume"
    """The completer, when the lease has ended."""
    RUN = "run"
    """A worker; past the deadline the abandoner."""
    ASK = "ask"
    """The reconciler; a dead letter has this duty, and no time."""
    EXPIRE = "expire"
    """The reaper, when the answer is past its retention."""
    FORGET = "forget"
    """The reaper, when nothing of it has to be remembered any longer."""


def duty_of(state: State, on_lapse: OnLapse) -> Duty:
    """The duty of a record in this state."""
    match state:
        case State.IN_PROGRESS:
            return Duty.RESUME if on_lapse is OnLapse.RESUME else Duty.LEASE
        case State.PENDING:
            return Duty.RUN
        case State.UNKNOWN:
            return Duty.ASK
        case State.COMPLETED:
            return Duty.EXPIRE
        case State.FAILED_RETRYABLE | State.EXPIRED:
            return Duty.FORGET


STATE_NUMBERS: Final[Mapping[State, int]] = {
    State.PENDING: 1,
    State.IN_PROGRESS: 2,
    State.COMPLETED: 3,
    State.FAILED_RETRYABLE: 4,
    State.UNKNOWN: 5,
    State.EXPIRED: 6,
}
ON_LAPSE_NUMBERS: Final[Mapping[OnLapse, int]] = {
    OnLapse.UNKNOWN: 1,
    OnLapse.RELEASE: 2,
    OnLapse.RESUME: 3,
}
DUTY_NUMBERS: Final[Mapping[str, int]] = {
    Duty.LEASE: 1,
    Duty.RESUME: 2,
    Duty.RUN: 3,
    Duty.ASK: 4,
    Duty.EXPIRE: 5,
    Duty.FORGET: 6,
}
"""How stores write them down; a number never gets another meaning."""

ABANDONED: Final = "nobody ran it in time"
"""The reason of a stored request that was not run; the stores' own texts say the same."""


@value
class Origin:
    """Where a key was used: kept beside the identity for the people who operate the system."""

    tenant: str
    method: str
    """Empty with an empty path: as in the route of its terms (`whole_origin`)."""
    path: str
    key: str


def whole_origin(origin: Origin, terms: Terms | None) -> Origin:
    """``origin`` with what was left out of it because the record's route says it."""
    if origin.method or terms is None:
        return origin
    method, _, path = terms.route.partition(" ")
    return Origin(origin.tenant, method, path, origin.key)


@value
class Record:
    """One key's row, as a store returns it."""

    identity: Identity
    state: State
    fence: Fence
    fingerprint: str
    fields: bytes
    on_lapse: OnLapse
    created_at: Micros
    leased_until: Micros | None
    expires_at: Micros | None
    forget_at: Micros | None
    snapshot: bytes | None
    reason: str | None
    retired_at: Micros | None = None
    """When the resource it made was retired: its answer is true no more."""

    def lapsed(self, now: Micros) -> bool:
        """The holder's time is up: it may be dead, stopped or cut off."""
        return (
            self.state is State.IN_PROGRESS
            and self.leased_until is not None
            and self.leased_until <= now
        )

    def past_retention(self, now: Micros) -> bool:
        """The answer is no longer promised; the use of the key is still remembered."""
        if self.state is State.EXPIRED:
            return True
        return (
            self.state is State.COMPLETED and self.expires_at is not None and self.expires_at <= now
        )

    def forgettable(self, now: Micros) -> bool:
        """Only settled records are ever forgotten; an unsettled one never becomes free by time."""
        settled = self.state in (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)
        return settled and self.forget_at is not None and self.forget_at <= now


@value
class Case:
    """A record with what workers, maintenance and operators need besides."""

    record: Record
    origin: Origin
    request: bytes | None
    """The stored request of a deferred or resumable one (`core/stored/requests.py`), while
    unsettled."""
    journal: bytes | None
    """Its recovery points (`core/recovery/journal.py`)."""
    resource: str | None
    tries: int
    """How often a probe was asked about it."""
    due_at: Micros | None
    """When somebody must look at it next; None: nobody will. Unknown, it is then a dead letter."""
    terms: Terms | None = None
    """Those it was made under; None: the store does not have them, and nobody knows the record."""


@value
class Glimpse:
    """What a list shows of a record. Its request and its answer are not read for it."""

    identity: Identity
    state: State
    on_lapse: OnLapse
    origin: Origin
    created_at: Micros
    leased_until: Micros | None
    expires_at: Micros | None
    forget_at: Micros | None
    due_at: Micros | None
    """As in `Case`."""
    tries: int
    reason: str | None
    size: int | None
    """Of its answer, as it is stored; None: it has none."""
    status: int | None = None
    """Of its answer; None: it has none, or it is encrypted and was not read for a list."""
    resource: str | None = None
    terms: Terms | None = None
    """As in `Case`."""


@frozen
class Effect:
    """One outside side effect, from the outbox."""

    key: str
    """Its downstream key: the same on every delivery."""
    identity: Identity | None
    """The record whose run asked for it, if one did."""
    name: str
    payload: bytes
    order: str | None
    """Effects of one order are delivered one after the other."""
    tries: int
    created_at: Micros
    error: str | None = None
    """Why the last try failed."""
    dead_at: Micros | None = None
    delivered_at: Micros | None = None
    provider_id: str | None = None
    due_at: Micros | None = None
    """Waiting: when it may be taken. Delivered: when it is forgotten. Dead: None."""
    leased_until: Micros | None = None
    """A worker has it until then."""
    application: str = ""
    """Whose workers deliver it."""


_NONE_REPEATED: Final[dict[bytes, tuple[bytes, ...]]] = {}


class HeaderView(Mapping[str, str]):
    """Case-insensitive, read-only view of raw headers; a repeated header gives its first value."""

    __slots__ = ("first", "repeated")

    def __init__(self, raw: Iterable[Header]) -> None:
        lines: Sequence[Header] = raw if isinstance(raw, list) else tuple(raw)
        self.first: dict[bytes, bytes] = dict(lines)
        """By its name in lower case, the first line of each header."""
        self.repeated: dict[bytes, tuple[bytes, ...]] = _NONE_REPEATED
        """All lines of those that have several."""
        # Most requests repeat nothing, and servers hand names over in lower case.
        if len(self.first) != len(lines) or not b"".join(self.first).islower():
            self._read(lines)

    def _read(self, lines: Iterable[Header]) -> None:
        every: dict[bytes, tuple[bytes, ...]] = {}
        for name, line in lines:
            name = name.lower()
            every[name] = (*every[name], line) if name in every else (line,)
        self.first = {name: found[0] for name, found in every.items()}
        self.repeated = {name: found for name, found in every.items() if len(found) > 1}

    def all(self, name: str) -> tuple[bytes, ...]:
        """Every value of the header, in the order received."""
        octets = name.lower().encode("latin-1")
        line = self.first.get(octets)
        return () if line is None else self.repeated.get(octets, (line,))

    def joined(self, name: bytes) -> str | None:
        """All lines of a header in one: which of several the application reads is unknown."""
        line = self.first.get(name)
        if line is None:
            return None
        if name in self.repeated:
            line = b", ".join(self.repeated[name])
        return line.decode("latin-1")

    def __getitem__(self, name: str) -> str:
        return self.first[name.lower().encode("latin-1")].decode("latin-1")

    # Mapping's own would raise and catch where a header is missing, as most are.
    @overload
    def get(self, name: str, default: None = None, /) -> str | None: ...
    @overload
    def get(self, name: str, default: str | T, /) -> str | T: ...
    def get(self, name: str, default: str | T | None = None, /) -> str | T | None:
        line = self.first.get(name.lower().encode("latin-1"))
        return default if line is None else line.decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode("latin-1") in self.first

    def __iter__(self) -> Iterator[str]:
        return iter([name.decode("latin-1") for name in self.first])

    def __len__(self) -> int:
        return len(self.first)


class RequestState:
    """The ``state`` of an ASGI scope by attribute, as on a request of Starlette."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        try:
            return self._found[name]
        except KeyError:
            raise AttributeError(
                f"request.state.{name}: nothing has set it before the key was claimed"
            ) from None


@frozen
class Request:
    """semel's own read-only view of a request, the same in every adapter.

    ``path`` is the full path, mount prefix included, canonically percent-encoded. ``raw`` is the
    ASGI scope or the WSGI environ: that is where authentication left its user.
    """

    method: str
    path: str
    query: bytes
    headers: HeaderView
    raw: Any
    escaped: str = ""
    """The path as it was sent, where a router could take it for another: `keys.escaped_path`."""

    @property
    def state(self) -> RequestState:
        """What authentication put into the ASGI scope's ``state``, by attribute.

        What nobody set is an AttributeError, which ``tenant=`` answers with a 401.
        """
        raw = self.raw
        if not isinstance(raw, MutableMapping) or "wsgi.version" in raw:
            raise ConfigurationError(
                "request.state is the ASGI scope's; WSGI, Flask and Django have none: "
                "read request.raw, where authentication left its user"
            )
        scope = cast("Mapping[str, Any]", raw)
        return RequestState(scope.get("state", {}))


@frozen
class Response:
    """A whole answer in memory."""

    status: int
    headers: Headers
    body: bytes
