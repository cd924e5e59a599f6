"""Was it sent? What an exception of an HTTP or gRPC client proves about the call that raised it.

Exceptions are known by package and name, since none of the libraries need be installed. "Not sent"
is a proof, and the only class that lets a call be made again; whatever falls short of it does not
get the benefit of the doubt. Its class alone proves nothing:

- A client may have tried before: it followed a redirect, or retried after a reset, and then could
  not connect. The exception tells of the last try only. So its frames must show the first one, from
  the caller's own code through functions of the client that are known (`client_internals`).
- An error of somebody else's, raised from "connection refused", may stand for several tries too.
  Only `NotExecuted` passes through such errors; a doubt passes through everything.
"""

from __future__ import annotations

import errno
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import dropwhile, takewhile
from types import FrameType
from typing import Any, Final

from semel.core.recovery import client_internals as internals
from semel.errors import NotExecuted


class WasSent(Enum):
    """What is known about a call that failed."""

    NOT_SENT = "not sent"
    ANSWERED = "answered"
    AMBIGUOUS = "ambiguous"


class By(Enum):
    """Where the class of an exception is to be read when its name does not tell."""

    STATUS = "by its status"
    CODE = "by its code"
    WITHIN = "by the error within"


Rule = WasSent | By | None

_NO, _MAYBE = WasSent.NOT_SENT, WasSent.AMBIGUOUS

_HTTPX: Final[Mapping[str, Rule]] = {
    "ConnectError": _NO,
    "ConnectTimeout": _NO,
    "PoolTimeout": _NO,
    "ProxyError": _NO,  # the tunnel was refused; nothing goes through before it stands
    "UnsupportedProtocol": _NO,
    "InvalidURL": _NO,
    "HTTPStatusError": By.STATUS,
    # LocalProtocolError too: a body shorter than announced is noticed after most was sent.
    "RequestError": _MAYBE,
}
_HTTPCORE: Final[Mapping[str, Rule]] = {
    "ConnectError": _NO,
    "ConnectTimeout": _NO,
    "PoolTimeout": _NO,
    "ProxyError": _NO,
    "UnsupportedProtocol": _NO,
    "NetworkError": _MAYBE,
    "TimeoutException": _MAYBE,
    "ProtocolError": _MAYBE,
}

# The most derived class that is listed decides; what a library adds later is in doubt by its base.
KNOWN: Final[Mapping[str, Mapping[str, Rule]]] = {
    "semel": {"NotExecuted": _NO, "OutcomeUnknown": _MAYBE},
    "builtins": {
        "ConnectionRefusedError": _NO,
        "ConnectionResetError": _MAYBE,
        "ConnectionAbortedError": _MAYBE,
        "BrokenPipeError": _MAYBE,
        "TimeoutError": _MAYBE,
        "EOFError": _MAYBE,
    },
    "socket": {"gaierror": _NO, "herror": _NO},
    "ssl": {
        "SSLCertVerificationError": _NO,
        # Not failures: "call me again when there is more to read".
        "SSLWantReadError": None,
        "SSLWantWriteError": None,
        "SSLError": _MAYBE,
    },
    "http": {"InvalidURL": _NO, "HTTPException": _MAYBE},
    "urllib": {"HTTPError": By.STATUS, "ContentTooShortError": _MAYBE, "URLError": By.WITHIN},
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPCORE,
    "httpcore2": _HTTPCORE,
    "urllib3": {
        "ConnectTimeoutError": _NO,
        "NewConnectionError": _NO,
        "EmptyPoolError": _NO,
        "ClosedPoolError": _NO,
        "LocationValueError": _NO,
        "MaxRetryError": By.WITHIN,
        "SSLError": By.WITHIN,
        # "Unable to connect to proxy" is also said when a proxy took the request and hung up.
        "ProxyError": By.WITHIN,
        "HTTPError": _MAYBE,
    },
    "requests": {
        "ConnectTimeout": _NO,
        "MissingSchema": _NO,
        "InvalidSchema": _NO,
        "InvalidURL": _NO,
        "URLRequired": _NO,
        "HTTPError": By.STATUS,
        "ConnectionError": By.WITHIN,
        "InvalidJSONError": None,
        "RequestException": _MAYBE,
    },
    "aiohttp": {
        "ClientConnectorError": _NO,
        "ConnectionTimeoutError": _NO,
        "ServerFingerprintMismatch": _NO,
        "ClientHttpProxyError": _NO,
        # Found out after a redirect, hence after an answer.
        "InvalidUrlRedirectClientError": _MAYBE,
        "NonHttpUrlRedirectClientError": _MAYBE,
        "InvalidURL": _NO,
        "NonHttpUrlClientError": _NO,
        "TooManyRedirects": _MAYBE,
        "ClientResponseError": By.STATUS,
        # Behind a ClientResponseError with status 400: an answer nobody could read.
        "HttpProcessingError": _MAYBE,
        "ClientError": _MAYBE,
    },
    "grpc": {"RpcError": By.CODE, "FutureTimeoutError": _MAYBE, "FutureCancelledError": _MAYBE},
}

# Codes that only the other side gives, to refuse. Not ALREADY_EXISTS, as no 409: an earlier try may
# have made what exists, and a channel with a retry policy does not show it. Not RESOURCE_EXHAUSTED:
# the client says so itself when the answer is larger than it takes. Not UNAVAILABLE, whatever its
# text: with a retry policy "failed to connect to all addresses" is the last try's, after others had
# been sent.
ANSWERED_CODES: Final = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
    }
)
_FAILURE_CODES: Final = frozenset({"ABORTED", "ALREADY_EXISTS", "DATA_LOSS"})
"""Given by the other side as well, but they leave open what was done before."""

_NETWORK_ERRORS: Final = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
    }
)

Shows = Callable[[list[FrameType]], bool]
"""Whether the frames of an error show that it is about the first try of its call."""

_PYTHON: Final = str(types.__file__).replace("\\", "/").rpartition("/")[0] + "/"
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def classify(error: BaseException, package: str = "") -> WasSent | None:
    """Whether the call that raised this was sent; None when it is no failure of a call's.

    The whole chain counts, in doubt the more dangerous class. ``package`` is that of the caller,
    who makes one call: earlier ones of the caller's own are seen only where they are in the chain.
    """
    found = _by_class(error)
    if found is not WasSent.NOT_SENT or says_not_executed(error):
        return found
    return WasSent.AMBIGUOUS if any(_unproved(error, _shown_by_all(package))) else found


def unanswered(error: BaseException) -> bool:
    """Whether something may have been sent whose answer never came. In doubt, it may have.

    Whoever called the client is left out of account: what else a handler did before is judged by
    its policy. So are errors of the system's own, which name no call.
    """
    if any(_kind(link) is WasSent.AMBIGUOUS and not _is_answer(link) for link in _judged(error)):
        return True
    return any(not _of_the_system(link) for link in _unproved(error, _shown_by_client))


def leaves_doubt(error: BaseException) -> bool:
    """Whether whoever raised it may have acted: it was cut off, or no answer came."""
    if says_not_executed(error):
        return False
    return not isinstance(error, Exception) or unanswered(error)


def says_not_executed(error: BaseException | None) -> bool:
    """Whether whoever raised it says so. Only that word counts, not that one call was refused.

    ``__context__`` is not followed: the word was not about what was raised later.
    """
    return _says_not_executed(error, frozenset())


def _says_not_executed(error: BaseException | None, above: frozenset[int]) -> bool:
    seen = set(above)
    # A circle of causes and groups ends where it began.
    while error is not None and id(error) not in seen:
        if isinstance(error, NotExecuted):
            return True
        seen.add(id(error))
        members = _members(error)
        if members:
            return all(_says_not_executed(member, frozenset(seen)) for member in members)
        error = error.__cause__
    return False


def _by_class(error: BaseException) -> WasSent | None:
    if any(_kind(link) is WasSent.AMBIGUOUS for link in _judged(error)):
        return WasSent.AMBIGUOUS
    return WasSent.NOT_SENT if says_not_executed(error) else _own(error)


def _own(error: BaseException) -> WasSent | None:
    """The class of the outermost error; a group's is that of all its members."""
    members = _members(error)
    if not members:
        return _kind(error)
    found = set(map(_by_class, members))
    if None in found:
        return None
    return WasSent.ANSWERED if WasSent.ANSWERED in found else WasSent.NOT_SENT


# ── one exception ─────────────────────────────────────────────────────────────────────────────────


def _kind(error: BaseException) -> WasSent | None:
    """The class of one exception, without what stands behind it."""
    if isinstance(error, BaseExceptionGroup):
        return None
    if not isinstance(error, Exception):
        return WasSent.AMBIGUOUS  # cancelled or interrupted, who knows where
    if _of_the_system(error):
        return _kind_of_system(error)
    match _rule(error):
        case By.STATUS:
            earlier = _tries_before_answer(error)
            first = earlier is not None and all(map(_left_nothing, earlier))
            return WasSent.ANSWERED if first and _is_refusal(error) else WasSent.AMBIGUOUS
        case By.CODE:
            return WasSent.ANSWERED if _code(error) in ANSWERED_CODES else WasSent.AMBIGUOUS
        case By.WITHIN:
            inner = next(_within(error), None)
            if inner is not None:
                return _kind(inner)
            # Nothing inside: urllib's own, else in doubt.
            return None if _package(type(error)) == "urllib" else WasSent.AMBIGUOUS
        case rule:
            return rule


def _rule(error: BaseException) -> Rule:
    for kind in type(error).__mro__:
        listed = KNOWN.get(_package(kind), {})
        if kind.__name__ in listed:
            return listed[kind.__name__]
    return None


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _of_the_system(error: BaseException) -> bool:
    return isinstance(error, OSError) and _package(type(error)) in {"builtins", "socket", "ssl"}


def _kind_of_system(error: BaseException) -> WasSent | None:
    if any(internals.place(frame) in internals.CONNECTING for frame in _frames(error)):
        return WasSent.NOT_SENT
    if getattr(error, "errno", None) in _NETWORK_ERRORS:
        return WasSent.AMBIGUOUS
    rule = _rule(error)
    return rule if isinstance(rule, WasSent) else None


def _within(error: BaseException) -> Iterator[BaseException]:
    """The errors that one of the libraries' errors carries as values."""
    if _rule(error) is By.WITHIN:
        named = (getattr(error, "reason", None), getattr(error, "original_error", None))
        yield from (each for each in (*named, *error.args) if isinstance(each, BaseException))


_CONFLICT: Final = 409
"""Providers say so of a key that is in use: a request with it may be under way there."""


def _is_refusal(answered: object) -> bool:
    """Whether an answer says that nothing was done.

    A success does not, though a client may fail over it: its body was no JSON. Nor does a redirect,
    by which providers lead to a receipt.
    """
    status = _status(answered)
    return status is not None and 400 <= status < 500 and status != _CONFLICT


def _left_nothing(tried: Any) -> bool:
    """Whether a try that a client has noted was refused, or never sent."""
    error = getattr(tried, "error", None)
    return _is_refusal(tried) if error is None else _by_class(error) is WasSent.NOT_SENT


def _tries_before_answer(error: BaseException) -> internals.Tries:
    """What the client had sent before this was answered; None where that cannot be read.

    Of a charge that was redirected to its receipt, the last answer is about the receipt.
    """
    if _package(type(error)) == "urllib":
        opened = [frame for frame in _frames(error) if internals.place(frame) == internals.OPENED]
        return () if len(opened) == 1 else None
    return internals.tries_before_answer(error)


def _status(answered: object) -> int | None:
    """The status of an error's answer, or of an answer, where it is a final one."""
    owners = ((getattr(answered, "response", None), "status_code"),)
    for owner, name in (*owners, *((answered, name) for name in ("status_code", "status", "code"))):
        status = getattr(owner, name, None)
        if isinstance(status, int) and status >= 200:
            return status
    return None


def _code(error: BaseException) -> str | None:
    """The name of a gRPC status; None when the error does not give one."""
    try:
        code: Any = getattr(error, "code", None)
        return str(code().name)
    except Exception:
        return None


def _is_answer(error: BaseException) -> bool:
    """Whether it came as an answer of the other side's, if a bad one."""
    match _rule(error):
        case By.STATUS:
            return _status(error) is not None
        case By.CODE:
            return _code(error) in ANSWERED_CODES | _FAILURE_CODES
        case _:
            return False


# ── the chain ─────────────────────────────────────────────────────────────────────────────────────


class _Excuse(Enum):
    """How much of what stands behind a proof is only its lower layers, not a failure of its own."""

    NOTHING = 0
    CANCELLATION = 1
    """A time-out cancels; nothing behind the cancellation belongs to it."""
    SYSTEM = 2
    """"Connect time-out" is made from the system's time-out, which alone would be a doubt."""


def _judged(error: BaseException) -> Iterator[BaseException]:
    """Every error in sight that speaks for itself, not as the lower layer of another."""
    return (link for link, excused in _walk(error) if not excused)


def _walk(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """The error and all behind it, each once, and whether a proof in front explains it.

    A group and its members may name each other: Starlette unpacks groups that way. What made
    somebody say `NotExecuted` is covered by it.
    """
    seen: set[int] = set()
    ahead: list[tuple[BaseException, _Excuse]] = [(error, _Excuse.NOTHING)]
    while ahead:
        link, excuse = ahead.pop()
        if id(link) in seen or isinstance(link, NotExecuted):
            continue
        seen.add(id(link))
        excused = _is_excused(link, excuse)
        yield link, excused
        ahead.extend(_behind(link, _passed_on(link, excuse if excused else None)))


def _behind(link: BaseException, excuse: _Excuse) -> Iterator[tuple[BaseException, _Excuse]]:
    direct = link.__cause__ or link.__context__
    others = [link.__context__, *_within(link), *_members(link)]
    yield from ((each, _Excuse.NOTHING) for each in others if each and each is not direct)
    if direct is not None:
        yield direct, excuse


def _is_excused(link: BaseException, excuse: _Excuse) -> bool:
    of_event_loop = _package(type(link)) in {"anyio", "trio"} and isinstance(link, Exception)
    if excuse is _Excuse.SYSTEM and (_of_the_system(link) or of_event_loop):
        return True
    return excuse is not _Excuse.NOTHING and not isinstance(link, (Exception, BaseExceptionGroup))


def _passed_on(link: BaseException, excuse: _Excuse | None) -> _Excuse:
    """What a link excuses behind it; ``excuse`` is the one it was granted itself, if any."""
    if excuse is None:
        proof = not _of_the_system(link) and _kind(link) is WasSent.NOT_SENT
        return _Excuse.SYSTEM if proof else _Excuse.NOTHING
    if _of_the_system(link):
        return _Excuse.CANCELLATION
    return excuse if isinstance(link, Exception) else _Excuse.NOTHING


def _members(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group; none when it is not one."""
    group: Any = error
    return group.exceptions if isinstance(error, BaseExceptionGroup) else ()


# ── the proof of a first try ──────────────────────────────────────────────────────────────────────


def _unproved(error: BaseException, shows_first_try: Shows) -> Iterator[BaseException]:
    """The errors in sight that say "not sent", and whose frames do not show a first try."""
    proved: set[FrameType] = set()
    for link, _ in _walk(error):
        # urllib3 wraps errors in others that it never raises; what is within is looked at.
        only_carried = link.__traceback__ is None and _rule(link) is By.WITHIN
        if _kind(link) is not WasSent.NOT_SENT or (link is not error and only_carried):
            continue
        frames = list(_frames(link))
        # Caught within a call that is proved, or by packages that only carry calls.
        inside = bool(frames) and (frames[0] in proved or all(map(internals.is_passive, frames)))
        if shows_first_try(frames) or (inside and _is_unbroken(frames)):
            proved.update(frames)
        else:
            yield link


def _shown_by_all(package: str) -> Shows:
    """The whole trace leads from the caller's own code straight through a client's first try.

    ``package`` is the caller's.
    """

    def shows(frames: list[FrameType]) -> bool:
        before = list(takewhile(lambda frame: not internals.is_on_a_way(frame), frames))
        callers = [frame for frame in before if not internals.is_passive(frame)]
        folders = (_PYTHON, *map(_folder, frames[len(before) : len(before) + 1]))
        straight = bool(callers) and all(_is_own(frame, package, folders) for frame in callers)
        return straight and _shown_by_client(frames)

    return shows


def _shown_by_client(frames: list[FrameType]) -> bool:
    """From where a client was called on, the trace is a known one, and tells of no earlier try.

    That a trace lacks the frame of a redirect or of a retry is no proof: it may be cut off, and
    the function may have another name.
    """
    way = list(dropwhile(lambda frame: not internals.is_on_a_way(frame), frames))
    way = way or [frame for frame in frames if internals.is_passive(frame)]
    told = any(internals.place(frame) in internals.TRIES for frame in way)
    return told and _is_unbroken(way)


def _is_unbroken(way: Iterable[FrameType]) -> bool:
    """Whether only known functions of clients are on the way, and none had sent anything before."""
    return all(
        (internals.is_on_a_way(frame) or internals.is_passive(frame)) and not _had_sent(frame)
        for frame in way
    )


def _had_sent(frame: FrameType) -> bool:
    """Whether a function had sent before; so it is if what it had tried cannot be read any more."""
    read = internals.TRIES.get(internals.place(frame))
    tries = read(frame.f_locals) if read is not None else ()
    if tries is None:
        return True
    # Not `classify`: the frames of a noted error lead to the very list it is noted in.
    errors = [getattr(noted, "error", None) for noted in tries]
    return any(error is None or _by_class(error) is not WasSent.NOT_SENT for error in errors)


def _is_own(frame: FrameType, package: str, folders: tuple[str, ...]) -> bool:
    """Whether it is the caller's code, or semel's. Any other package may have tried before.

    What is not installed is the caller's: it lies neither with Python nor with other packages.
    """
    path = _path(frame)
    if _root(frame) in ("semel", package):
        return True
    is_file = path.startswith("/") or path[1:3] == ":/"
    installed = path.startswith(folders) or not _INSTALLED.isdisjoint(path.split("/"))
    return is_file and not installed


def _folder(frame: FrameType) -> str:
    """Where the frame's package is installed, among others."""
    return _path(frame).rpartition(f"/{_root(frame)}/")[0] + "/"


def _path(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")


def _root(frame: FrameType) -> str:
    return internals.place(frame)[0].partition(".")[0]


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
