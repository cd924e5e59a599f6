"""Private names of HTTP clients: the ways on which a call fails before anything of it was sent.

`was_sent` reads the frames of an exception by them. A frame that is not on a way listed here, a
version that was not read, or a variable that is gone proves nothing, and the call is in doubt.
`tests/core/test_client_internals.py` fails when a newer version changes what was read: read it
again, then raise the bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Final, cast

Version = tuple[int, int]
Place = tuple[str, str]
"""A module and the qualified name of a function in it."""

READ: Final[Mapping[str, tuple[Version, Version]]] = {
    "httpx": ((0, 27), (0, 29)),
    "httpx2": ((2, 16), (2, 17)),
    "httpcore": ((1, 0), (1, 1)),
    "httpcore2": ((2, 16), (2, 17)),
    "requests": ((2, 32), (2, 35)),
    "urllib3": ((2, 0), (2, 9)),
    "aiohttp": ((3, 12), (3, 15)),
    "http": ((3, 11), (3, 15)),
    "urllib": ((3, 11), (3, 15)),
}
"""The oldest version that was read, and the first that was not. Python's own have its version."""

_PYTHONS_OWN: Final = frozenset({"http", "urllib"})

PASSIVE: Final = frozenset(
    """
    aiohappyeyeballs anyio asyncio concurrent contextlib contextvars functools outcome queue
    selectors socket ssl threading trio
    """.split()  # noqa: SIM905 - a list of words
)
"""Packages that carry calls of others and make none: their frames may stand anywhere on a way."""

ALL: Final = frozenset({"*"})
"""Any function: nothing in the module sends a request a second time."""

_VERBS: Final = ("request", "post", "put", "patch", "delete")
_HTTPX_CLIENT: Final = (
    *_VERBS,
    "stream",
    "send",
    "_send_handling_auth",
    "_send_handling_redirects",
    "_send_single_request",
)


def _httpx(package: str) -> Mapping[str, frozenset[str]]:
    both = [f"{kind}.{name}" for kind in ("Client", "AsyncClient") for name in _HTTPX_CLIENT]
    return {
        f"{package}._api": frozenset(_VERBS),
        f"{package}._client": frozenset({*both, "BaseClient.build_request"}),
        f"{package}._models": frozenset({"Request.__init__"}),
        f"{package}._transports.default": ALL,
        f"{package}._urls": ALL,
        f"{package}._urlparse": ALL,
    }


WAYS: Final[Mapping[str, frozenset[str]]] = {
    **_httpx("httpx"),
    **_httpx("httpx2"),
    "httpcore": ALL,
    "httpcore2": ALL,
    "requests.api": frozenset(_VERBS),
    "requests.sessions": frozenset(
        f"Session.{name}" for name in (*_VERBS, "prepare_request", "send", "get_adapter")
    ),
    "requests.models": frozenset({"PreparedRequest.prepare", "PreparedRequest.prepare_url"}),
    "requests.adapters": frozenset({"HTTPAdapter.send"}),
    "urllib3._request_methods": ALL,
    "urllib3.poolmanager": frozenset(
        {
            "PoolManager.urlopen",
            "PoolManager.connection_from_host",
            "PoolManager.connection_from_context",
            "ProxyManager.urlopen",
        }
    ),
    "urllib3.connectionpool": frozenset(
        {
            "HTTPConnectionPool.urlopen",
            "HTTPConnectionPool._get_conn",
            "HTTPConnectionPool._make_request",
            "HTTPConnectionPool._raise_timeout",
            "HTTPSConnectionPool._prepare_proxy",
            "HTTPSConnectionPool._validate_conn",
        }
    ),
    "urllib3.connection": ALL,
    "urllib3.util.connection": ALL,
    "urllib3.util.retry": frozenset({"Retry.increment"}),
    "urllib3.util.ssl_": ALL,
    "urllib3.util.url": ALL,
    "urllib3.util.util": frozenset({"reraise"}),
    "aiohttp.client": frozenset(
        {
            "_BaseRequestContextManager.__aenter__",
            "_BaseRequestContextManager.__await__",
            "ClientSession._request",
            "ClientSession._request.<locals>._connect_and_send_request",
        }
    ),
    "aiohttp.connector": ALL,
    "aiohttp.resolver": ALL,
    "http.client": frozenset(
        {
            "HTTPConnection.request",
            "HTTPConnection._send_request",
            "HTTPConnection.putrequest",
            "HTTPConnection._validate_path",
            "HTTPConnection._validate_host",
            "HTTPConnection.endheaders",
            "HTTPConnection._send_output",
            "HTTPConnection.send",
            "HTTPConnection.connect",
            "HTTPConnection._tunnel",
            "HTTPSConnection.connect",
        }
    ),
    "urllib.request": frozenset(
        {
            "urlopen",
            "OpenerDirector.open",
            "OpenerDirector._open",
            "OpenerDirector._call_chain",
            "HTTPHandler.http_open",
            "HTTPSHandler.https_open",
            "AbstractHTTPHandler.do_open",
        }
    ),
}
"""Functions on the way from a call to its connection, by module, or by package where all are."""

CONNECTING: Final[frozenset[Place]] = frozenset(
    {
        ("socket", "create_connection"),
        ("socket", "getaddrinfo"),
        ("ssl", "SSLSocket.do_handshake"),
        ("ssl", "SSLObject.do_handshake"),
        ("asyncio.base_events", "BaseEventLoop.create_connection"),
        ("asyncio.selector_events", "BaseSelectorEventLoop.sock_connect"),
        ("urllib3.util.connection", "create_connection"),
        ("http.client", "HTTPConnection._tunnel"),
        ("urllib3.connection", "HTTPConnection._tunnel"),
    }
)
"""Functions that end before a request can begin: what the system reports there was not sent."""

PREPARING: Final[frozenset[Place]] = frozenset(
    {
        ("httpx._client", "BaseClient.build_request"),
        ("httpx2._client", "BaseClient.build_request"),
        ("requests.sessions", "Session.prepare_request"),
        ("http.client", "HTTPConnection.putrequest"),
    }
)
"""Functions that make the request of a first try, and of no other."""

OPENED: Final[Place] = ("urllib.request", "OpenerDirector.open")
"""Called for each try: from within the first one, where that led to a second."""

Tries = Sequence[Any] | None
"""What was tried before, as the client noted it; None when that cannot be read."""


def _noted(found: Any) -> Tries:
    return None if not isinstance(found, Sequence) else found  # pyright: ignore[reportUnknownVariableType]


def _history(names: Mapping[str, Any]) -> Tries:
    return _noted(names.get("history"))


def _sent_once_by_aiohttp(method: object) -> bool:
    """aiohttp sends idempotent methods once more when a kept connection turns out to be dead."""
    return method in ("POST", "PATCH")


def _history_of_aiohttp(names: Mapping[str, Any]) -> Tries:
    once = _sent_once_by_aiohttp(names.get("method"))
    return _history(names) if once or names.get("retry_persistent_connection") is True else None


def _until(given: str, answer: str) -> Callable[[Mapping[str, Any]], Tries]:
    """A function that has its argument and no answer yet has made its first try."""
    return lambda names: () if given in names and answer not in names else None


def _noted_by_pool(names: Mapping[str, Any]) -> Tries:
    return _noted(getattr(names.get("retries"), "history", None))


def _noted_by_pools(names: Mapping[str, Any]) -> Tries:
    options: Any = names.get("kw")
    if not isinstance(options, dict):
        return None
    return getattr(cast("dict[str, Any]", options).get("retries"), "history", ())


def tries_before_answer(error: BaseException) -> Tries:
    """Redirects, passwords that were asked for and retries, as an error with a status has them."""
    response: Any = getattr(error, "response", None)
    history = _noted(getattr(error if response is None else response, "history", None))
    asked: Any = getattr(error, "request_info", None)
    if history is None or (asked is not None and not _sent_once_by_aiohttp(asked.method)):
        return None
    retries = getattr(getattr(response, "raw", None), "retries", None)  # of requests
    return [*history, *getattr(retries, "history", ())]


TRIES: Final[Mapping[Place, Callable[[Mapping[str, Any]], Tries]]] = {
    **{
        (f"{package}._client", f"{kind}.{name}"): _history
        for package in ("httpx", "httpx2")
        for kind in ("Client", "AsyncClient")
        for name in ("_send_handling_auth", "_send_handling_redirects")
    },
    ("requests.sessions", "Session.send"): _until("request", "r"),
    ("urllib3.poolmanager", "PoolManager.urlopen"): _noted_by_pools,
    ("urllib3.connectionpool", "HTTPConnectionPool.urlopen"): _noted_by_pool,
    ("aiohttp.client", "ClientSession._request"): _history_of_aiohttp,
    OPENED: _until("req", "response"),
    **dict.fromkeys(CONNECTING | PREPARING, lambda _: ()),
}
"""How to read, from a function's variables, what it tried before. Without one there is no proof."""


def place(frame: FrameType) -> Place:
    return str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname


def is_on_a_way(frame: FrameType) -> bool:
    """Whether it is a function of a client, in a version that was read."""
    module, function = place(frame)
    package = module.partition(".")[0]
    listed = WAYS.get(module) or WAYS.get(package, frozenset())
    if listed is not ALL and function not in listed:
        return False
    oldest, first_unread = READ[package]
    found = version(package)
    return found is not None and oldest <= found < first_unread


def is_passive(frame: FrameType) -> bool:
    return place(frame)[0].partition(".")[0] in PASSIVE


def version(package: str) -> Version | None:
    """Of a package that is imported; None where it does not say."""
    if package in _PYTHONS_OWN:
        return sys.version_info[:2]
    major, _, rest = str(getattr(sys.modules.get(package), "__version__", "")).partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
