"""How an answer looks the first time and every time after.

What is stored is the answer without the headers that belong to one connection or one moment; a
replay gets those anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, TypeVar

from semel.core.exchange.problems import OF_ONE_CONNECTION
from semel.core.flow import Flow, ask
from semel.core.operations.handler import Apart
from semel.core.policy import Policy
from semel.core.records import Header, Headers, Micros, Response
from semel.core.stored.snapshot import COMPRESS_OVER, Snapshot, encode, encode_whole
from semel.core.terms import Terms

R = TypeVar("R")

_NOT_KEPT: Final = OF_ONE_CONNECTION | {
    # one proxy's affair
    *(b"proxy-authenticate", b"proxy-authorization"),
    # one moment's or one browser's affair
    *(b"date", b"set-cookie", b"set-cookie2", b"age"),
    # said by semel itself, anew each time
    *(b"content-length", b"cache-control", b"idempotency-expires"),
}
_EXPIRES: Final = b"idempotency-expires"
_ALLOWED_ORIGIN: Final = b"access-control-allow-origin"
WITHOUT_A_BODY: Final = (204, 304)
_CODINGS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 47}
"""The content codings the standard library can undo, with zlib's window bits for each."""
_STEP: Final = 2048
"""Coded bytes that zlib is given at once: at the end of each gzip member it copies the rest."""
LARGE: Final = 64 * 1024
"""Coded bytes that take long to undo."""
_OF_CODED_BYTES: Final = frozenset(
    {b"content-encoding", b"content-digest", b"repr-digest", b"digest", b"content-md5"}
)
"""Headers that say something of the coded bytes, wrong of the plain ones (RFC 9530)."""
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


def kept_headers(headers: Headers) -> Headers:
    """The headers that are stored and sent again, in their order, repeated ones included."""
    return tuple([pair for pair in headers if pair[0].lower() not in _NOT_KEPT])


def kept(response: Response, policy: Policy | Terms) -> Snapshot:
    """What is stored of an answer; of one that is too large, a receipt."""
    return Snapshot(
        status=response.status,
        headers=kept_headers(response.headers),
        body=response.body if len(response.body) <= policy.max_response_body else None,
        size=len(response.body),
        schema_version=policy.schema_version,
    )


def secured(response: Response, policy: Policy) -> bytes:
    """`kept`, as a store keeps it."""
    body = response.body
    large = len(body) > COMPRESS_OVER or len(body) > policy.max_response_body
    if large or policy.schema_version is not None:
        return encode(kept(response, policy))
    headers = [pair for pair in response.headers if pair[0].lower() not in _NOT_KEPT]
    return encode_whole(response.status, headers, body)


def first_headers(
    headers: Headers, policy: Policy, expires_at: Micros | None, *, cross_origin: bool = False
) -> Headers:
    """The handler's own headers, with semel's said once."""
    ours, theirs = policy.said_by_us, list[Header]()
    for pair in headers:
        name = pair[0].lower()
        if name not in ours:
            theirs.append(pair)
            cross_origin = cross_origin or name == _ALLOWED_ORIGIN
    theirs += policy.first_mark
    if expires_at is not None:
        theirs.append((_EXPIRES, _http_date(expires_at // 1_000_000)))
    if cross_origin:
        theirs.append(_exposed(policy))
    return tuple(theirs)


def repeated(
    kept: tuple[int, Headers, bytes], policy: Policy, expires_at: Micros, cross_origin: bool
) -> Response | None:
    """`replayed`, for an answer that every caller can read; None where it has a content coding."""
    status, headers, body = kept
    unchanged = _unchanged(headers, policy.replay_name)
    if unchanged is None:
        return None
    theirs, crossed = unchanged
    size = () if status in WITHOUT_A_BODY else ((b"content-length", b"%d" % len(body)),)
    until = (_EXPIRES, _http_date(expires_at // 1_000_000))
    said = (*theirs, *size, *policy.replay_mark, until)
    return Response(status, (*said, _exposed(policy)) if crossed or cross_origin else said, body)


@lru_cache(128)  # most answers of a route have the same headers
def _unchanged(headers: Headers, replay_name: bytes) -> tuple[Headers, bool] | None:
    """The kept headers that are sent again as they are, and whether they allow another origin."""
    theirs: list[Header] = []
    crossed = False
    for pair in headers:
        name = pair[0].lower()
        if name == b"content-encoding":
            return None
        if name not in (replay_name, b"content-length"):
            theirs.append(pair)
            crossed = crossed or name == _ALLOWED_ORIGIN
    return tuple(theirs), crossed


def unhurried(
    response: Response | None, accept_encoding: str | None, make: Callable[[], R]
) -> Flow[R]:
    """What ``make`` makes of a kept answer; done apart where much must be decoded for it."""
    if response is None or not takes_long(response, accept_encoding):
        return make()
    made: R = yield from ask(Apart(make))
    return made


def takes_long(response: Response, accept_encoding: str | None) -> bool:
    """Whether much would have to be decoded for this caller."""
    return len(response.body) >= LARGE and _window(response.headers, accept_encoding) is not None


def replayed(
    response: Response,
    policy: Policy,
    expires_at: Micros | None,
    accept_encoding: str | None,
    *,
    cross_origin: bool = False,
) -> Response:
    """The kept answer as it leaves every time after the first."""
    response = measured(_acceptable(response, accept_encoding, policy.max_response_body))
    theirs = [pair for pair in response.headers if pair[0].lower() != policy.replay_name]
    theirs += policy.replay_mark
    if expires_at is not None:
        theirs.append((_EXPIRES, _http_date(expires_at // 1_000_000)))
    if cross_origin or any(name.lower() == _ALLOWED_ORIGIN for name, _ in theirs):
        theirs.append(_exposed(policy))
    return Response(response.status, tuple(theirs), response.body)


def measured(response: Response) -> Response:
    """The answer with the length of the body it has, where its status has one."""
    headers = [pair for pair in response.headers if pair[0].lower() != b"content-length"]
    if response.status not in WITHOUT_A_BODY:
        headers.append((b"content-length", b"%d" % len(response.body)))
    return Response(response.status, tuple(headers), response.body)


def _exposed(policy: Policy) -> Header:
    """What a browser shows to a script of another origin."""
    named = b", ".join((policy.replay_name, _EXPIRES, b"retry-after"))
    return b"access-control-expose-headers", named


@lru_cache(256)  # many answers of one second end in the same second
def _http_date(seconds: int) -> bytes:
    """RFC 9110, 5.6.7; fractions are dropped, so nothing is promised longer than it is kept."""
    moment = datetime.fromtimestamp(seconds, UTC)
    # Not strftime's names: those follow the process's locale.
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day}, {moment:%d} {month} {moment:%Y %H:%M:%S} GMT".encode()


def _acceptable(response: Response, accept_encoding: str | None, limit: int) -> Response:
    """Undo a stored content coding that this caller did not offer to take."""
    window = _window(response.headers, accept_encoding)
    body = None if window is None else _undone(response.body, window, limit)
    if body is None:
        return response
    headers = [pair for pair in response.headers if pair[0].lower() not in _OF_CODED_BYTES]
    return Response(response.status, tuple(headers), body)


def _undone(body: bytes, window: int, limit: int) -> bytes | None:
    """The plain body; None where that is not sure, or is more than a body may be.

    A body may have several gzip members, of which zlib alone reads the first. Few stored bytes may
    stand for gigabytes. What is labelled wrongly, cut short or padded is the handler's own affair.
    """
    plain: list[bytes] = []
    size = at = 0
    coder = None
    while at < len(body):
        coder = coder or zlib.decompressobj(window)
        step = body[at : at + _STEP]
        try:
            plain.append(coder.decompress(step, limit - size + 1))
        except zlib.error:
            return None
        size += len(plain[-1])
        if size > limit:
            return None
        at += len(step) - len(coder.unused_data)
        coder = None if coder.eof else coder
    return b"".join(plain) if plain and coder is None else None


def _window(headers: Headers, accept_encoding: str | None) -> int | None:
    """zlib's window bits for a content coding that this caller did not offer to take.

    None where there is none, or there are several: then nothing is undone.
    """
    given = [text for name, text in headers if name.lower() == b"content-encoding"]
    coding = b", ".join(given).strip().lower()
    window = _CODINGS.get(coding)
    return None if window is None or accepts(accept_encoding, coding.decode()) else window


def accepts(accept_encoding: str | None, coding: str) -> bool:
    """Whether an Accept-Encoding header takes ``coding`` (RFC 9110, 12.5.3)."""
    if accept_encoding is None:
        return False  # the first caller's header is not this caller's: identity suits everybody
    weights: dict[str, bool] = {}
    for item in accept_encoding.lower().split(","):
        name, _, weight = item.partition(";")
        weights[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return weights.get(coding, weights.get("*", False))
