"""What a logical call is, what comes of a try, and what a call's flow asks of the world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import urlsplit

from semel.core.frozen import frozen
from semel.core.operations.requests import FlowOperation

Pairs: TypeAlias = tuple[tuple[str, str], ...]

_NONE: Final[Mapping[str, Any]] = {}


@frozen
class Call:
    """One logical call: it has one key and one body, however often it is sent."""

    key: str
    name: str
    """What its caller calls it; for people, and to find it again."""
    method: str
    url: str
    headers: Pairs
    """Those that the journal keeps."""
    body: bytes
    created_at: float
    """Seconds since 1970, by this machine's clock."""
    omitted: tuple[str, ...] = ()
    """Names of the headers that the journal does not keep."""
    private: Pairs = ()
    """Those headers, where this process was given them."""
    options: Mapping[str, Any] = _NONE
    """What only the HTTP library reads, such as a time-out; not journaled."""
    status_url: str | None = None
    """Where the server said that the call's status can be asked for."""
    resumed: bool = False
    """Another try may have been sent before, by this process or another."""
    row: int | None = None
    """Its row in the journal."""

    @property
    def place(self) -> str:
        """Method and address without the query, which may hold what is nobody's business."""
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


# ── what comes of a try ───────────────────────────────────────────────────────────────────────────


@frozen
class Answer:
    """A whole answer. ``native`` is the HTTP library's own object, which the caller gets."""

    status: int
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes
    native: Any = None


@frozen
class Failed:
    """No answer; ``sent`` is False only where it is proved that nothing was sent."""

    error: Exception
    sent: bool
    is_bug: bool = False
    """No failure of a request's: a hook of the caller's raised it, before or after it was sent."""


@frozen
class Tried:
    """A try's result and its moment: by a clock that only goes forward, and by the wall's."""

    result: Answer | Failed
    now: float
    wall: float


# ── operations ────────────────────────────────────────────────────────────────────────────────────


@frozen
class Send(FlowOperation[Tried]):
    """Send the request, with its key."""

    call: Call


@frozen
class Ask(FlowOperation[Tried]):
    """Get the status resource, without a key."""

    call: Call
    url: str


@frozen
class Rest(FlowOperation[None]):
    """Wait for a random time between the two, in seconds."""

    least: float
    most: float


@frozen
class Hold(FlowOperation[None]):
    """Let nobody else resume the call for so many seconds."""

    call: Call
    seconds: float


@frozen
class Point(FlowOperation[None]):
    """Journal where the call's status can be asked for."""

    call: Call
    url: str


@frozen
class Conclude(FlowOperation[None]):
    """Journal the final answer."""

    finishing: ClassVar[bool] = True
    call: Call
    answer: Answer


@frozen
class LetGo(FlowOperation[None]):
    """Leave the call pending, for anybody to resume."""

    finishing: ClassVar[bool] = True
    call: Call


@frozen
class Withdraw(FlowOperation[None]):
    """Strike the call from the journal: it was never sent, and is not to be."""

    call: Call
