"""A logical call, the result of a try, and the operations that the flow of a call yields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import urlsplit

from semel.core.frozen import frozen
from semel.core.operations.requests import FlowOperation
from semel.core.request.key_places import DEFAULT_HEADER, BodyField

Pairs: TypeAlias = tuple[tuple[str, str], ...]

_NONE: Final[Mapping[str, Any]] = {}


@frozen
class KeyTerms:
    """Where the key of a call goes, and how long the server has said that it counts."""

    key_in: str | BodyField = DEFAULT_HEADER
    quoted: bool = False
    lifetime: float | None = None
    """Seconds from when the call was made; None: nobody has told."""

    @property
    def place(self) -> str:
        """The place in one spelling; the form of the key in a header belongs to it."""
        if isinstance(self.key_in, BodyField):
            return f"body {self.key_in.pointer}"
        return f"header {self.key_in.lower()}{', quoted' if self.quoted else ''}"


_USUAL: Final = KeyTerms()


@frozen
class LogicalCall:
    """One logical call: it has one key and one body, however often it is sent."""

    key: str
    name: str
    """The caller's name for it, to find it in the journal."""
    method: str
    url: str
    headers: Pairs
    """The headers that the journal keeps."""
    body: bytes
    created_at: float
    """Seconds since 1970, by this machine's clock."""
    omitted: tuple[str, ...] = ()
    """Names of the headers that the journal does not keep."""
    private: Pairs = ()
    """Those headers with their values, if this process was given them."""
    options: Mapping[str, Any] = _NONE
    """Options of the HTTP library, such as a time-out; not journaled."""
    terms: KeyTerms = _USUAL
    """Where its key goes, and how long it counts; journaled."""
    status_url: str | None = None
    """Where the server offers the status of the call."""
    resumed: bool = False
    """Another try may have been sent before, by this process or another."""
    row: int | None = None
    """Its row in the journal."""

    @property
    def place(self) -> str:
        """Method and address, without the query: it may hold secrets."""
        parts = urlsplit(self.url)
        return f"{self.method} {parts.scheme}://{parts.netloc}{parts.path}"

    @property
    def origin(self) -> str:
        return origin(self.url)


def origin(url: str) -> str:
    """Scheme, host and port, in one spelling."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


# ── the result of a try ───────────────────────────────────────────────────────────────────────────


@frozen
class CallAnswer:
    """A whole answer. ``native`` is the HTTP library's own object, which the caller gets."""

    status: int
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes
    native: Any = None


@frozen
class NoAnswer:
    """A try without an answer. ``sent`` is False only if nothing was sent, proved."""

    error: Exception
    sent: bool
    is_bug: bool = False
    """Not a failure of the request: a hook of the caller raised it, before or after sending."""


@frozen
class TryResult:
    """The result of a try, with its time by the monotonic clock and by the wall clock."""

    result: CallAnswer | NoAnswer
    now: float
    wall: float


# ── operations ────────────────────────────────────────────────────────────────────────────────────


@frozen
class SendRequest(FlowOperation[TryResult]):
    """Send the request, with its key."""

    call: LogicalCall


@frozen
class AskStatus(FlowOperation[TryResult]):
    """Get the status resource, without a key."""

    call: LogicalCall
    url: str


@frozen
class FreshCredentials(FlowOperation[Mapping[str, str]]):
    """The headers that the caller's own function gives for the next try."""

    call: LogicalCall


@frozen
class Sleep(FlowOperation[None]):
    """Wait for a random time between the two, in seconds."""

    least: float
    most: float


@frozen
class ExtendHold(FlowOperation[None]):
    """Let no other process resume the call for so many seconds."""

    call: LogicalCall
    seconds: float


@frozen
class RecordStatusUrl(FlowOperation[None]):
    """Journal where the server offers the status of the call."""

    call: LogicalCall
    url: str


@frozen
class RecordAnswer(FlowOperation[None]):
    """Journal the final answer."""

    finishing: ClassVar[bool] = True
    call: LogicalCall
    answer: CallAnswer


@frozen
class ReleaseCall(FlowOperation[None]):
    """Leave the call pending, for any process to resume."""

    finishing: ClassVar[bool] = True
    call: LogicalCall


@frozen
class ForgetCall(FlowOperation[None]):
    """Delete the call from the journal: it was never sent and must not be."""

    call: LogicalCall
