"""What real clients raise on real sockets proves what `classify` says, and never more.

Whenever the provider has seen a byte of the request, no exception may be taken for "not sent".
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import multiprocessing
import socket
import ssl
import traceback
import types
import urllib.error
import urllib.request
import xmlrpc.client
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import httpx2
import pytest
import requests
import requests.adapters
import urllib3

import semel
from semel.core.exchange.settle import is_ambiguous
from semel.core.recovery.client_internals import is_on_a_way
from semel.core.recovery.was_sent import WasSent, classify, says_not_executed
from tests.core import provider as acts
from tests.core.provider import Act, Provider, answer, deaf_port, say
from tests.servers.ports import bound_somewhere
from tests.waiting import PATIENCE

NOT_SENT, ANSWERED, AMBIGUOUS = WasSent.NOT_SENT, WasSent.ANSWERED, WasSent.AMBIGUOUS

BODY = b"amount=1"
LONG, SHORT = PATIENCE, 0.05
"""Seconds. Short is only what would never end: nothing that must come about races it."""
TRUST = ssl.create_default_context()
"""Reading the certificates takes longer than most of these calls."""

# ── the clients ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Order:
    """One call to make; how long to wait for a connection, and for an answer."""

    url: str
    method: str = "POST"
    connect: float = LONG
    read: float = LONG
    proxy: str | None = None


def patiently(library: Any, order: Order) -> dict[str, Any]:
    """Options of a client of httpx, or of httpx2."""
    timeout = library.Timeout(LONG, connect=order.connect, read=order.read)
    plain = {"trust_env": False, "verify": TRUST, "follow_redirects": True}
    return {**plain, "timeout": timeout, "proxy": order.proxy}


def by_httpx(order: Order, library: Any = httpx) -> None:
    with library.Client(**patiently(library, order)) as client:
        client.request(order.method, order.url, content=BODY).raise_for_status()


def by_awaited_httpx(order: Order) -> None:
    async def call() -> None:
        async with httpx.AsyncClient(**patiently(httpx, order)) as client:
            (await client.request(order.method, order.url, content=BODY)).raise_for_status()

    asyncio.run(call())


def by_requests(order: Order) -> None:
    proxies = {"http": order.proxy, "https": order.proxy} if order.proxy else {}
    with requests.Session() as session:
        session.trust_env = False
        session.proxies.update(proxies)
        session.request(
            order.method, order.url, data=BODY, timeout=(order.connect, order.read)
        ).raise_for_status()


def by_urllib3(order: Order) -> None:
    timeout = urllib3.Timeout(connect=order.connect, read=order.read)
    pools = (
        urllib3.ProxyManager(order.proxy, timeout=timeout)
        if order.proxy
        else urllib3.PoolManager(timeout=timeout)
    )
    with pools:
        pools.request(order.method, order.url, body=BODY)


def by_aiohttp(order: Order) -> None:
    patience = aiohttp.ClientTimeout(sock_connect=order.connect, sock_read=order.read)

    async def call() -> None:
        async with (
            aiohttp.ClientSession(timeout=patience) as session,
            session.request(order.method, order.url, data=BODY, proxy=order.proxy) as response,
        ):
            await response.read()
            response.raise_for_status()

    asyncio.run(call())


def shortest(order: Order) -> float:
    """For clients that know one time-out. A connection to a port that listens is made by the
    kernel before they look at it, so that even then only what never ends is ended."""
    return min(order.connect, order.read)


def by_http_client(order: Order) -> None:
    url = urlsplit(order.url)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=shortest(order))
    try:
        connection.request(order.method, url.path, BODY)
        connection.getresponse().read()
    finally:
        connection.close()


def by_urllib(order: Order) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(order.url, BODY, method=order.method)
    with direct.open(request, timeout=shortest(order)) as response:
        response.read()


CLIENTS: Mapping[str, Callable[[Order], None]] = {
    "httpx": by_httpx,
    "httpx2": partial(by_httpx, library=httpx2),
    "awaited httpx": by_awaited_httpx,
    "requests": by_requests,
    "urllib3": by_urllib3,
    "aiohttp": by_aiohttp,
    "http.client": by_http_client,
    "urllib": by_urllib,
}


def failure(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as raised:
        call()
    if isinstance(raised.value, urllib.error.HTTPError):
        raised.value.close()
    return raised.value


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def refused() -> Iterator[int]:
    with bound_somewhere() as bound:
        yield bound.getsockname()[1]


@dataclass(frozen=True)
class Case:
    """One thing that may go wrong, and what it proves; ``but`` where a client cannot tell."""

    proves: WasSent | None
    act: Act | None = None
    place: Callable[[], AbstractContextManager[int]] | None = None
    url: str = "http://127.0.0.1:{port}/charge"
    connect: float = LONG
    read: float = LONG
    but: Mapping[str, WasSent | None] | None = None
    without: frozenset[str] = frozenset()

    def expected(self, client: str) -> WasSent | None:
        return (self.but or {}).get(client, self.proves)


HTTPS = "https://127.0.0.1:{port}/charge"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npaid"
NOT_TOLD = {"requests": AMBIGUOUS, "urllib3": AMBIGUOUS}
PASS_ANSWERS_ON = frozenset({"urllib3", "http.client"})

CASES: Mapping[str, Case] = {
    "refused": Case(NOT_SENT, place=refused),
    "no such name": Case(NOT_SENT, url="http://nowhere.invalid/charge"),
    "connect time-out": Case(NOT_SENT, place=deaf_port, connect=SHORT),
    "no TLS": Case(NOT_SENT, say(b"what?\r\n"), url=HTTPS),
    "hung up on TLS": Case(NOT_SENT, acts.hang_up, url=HTTPS),
    # urllib3 speaks of a connection broken, or a read time-out, as after the request.
    "reset during TLS": Case(NOT_SENT, acts.reset, url=HTTPS, but=NOT_TOLD),
    "silent on TLS": Case(
        NOT_SENT, acts.be_silent, url=HTTPS, connect=SHORT, read=SHORT, but=NOT_TOLD
    ),
    "no such protocol": Case(
        NOT_SENT,
        url="nonsense://127.0.0.1:9/charge",
        but={"urllib": None},
        without=frozenset({"http.client"}),
    ),
    "turned away": Case(AMBIGUOUS, acts.turn_away),
    "hung up": Case(AMBIGUOUS, acts.hang_up),
    "reset": Case(AMBIGUOUS, acts.reset),
    "silent": Case(AMBIGUOUS, acts.be_silent, read=SHORT),
    "half an answer": Case(AMBIGUOUS, say(HALF)),
    "half an answer, then silent": Case(AMBIGUOUS, acts.say_and_stay(HALF), read=SHORT),
    "nonsense": Case(AMBIGUOUS, say(b"nonsense\r\n\r\n")),
    "answered 404": Case(ANSWERED, say(answer("404 No")), without=PASS_ANSWERS_ON),
    "answered 409": Case(AMBIGUOUS, say(answer("409 In use")), without=PASS_ANSWERS_ON),
    "answered 500": Case(AMBIGUOUS, say(answer("500 Ouch")), without=PASS_ANSWERS_ON),
}
TABLE = [
    (client, name)
    for name, case in CASES.items()
    for client in CLIENTS
    if client not in case.without
]


def suffered(client: str, case: Case) -> tuple[BaseException, bool]:
    """What the client raised, and whether the provider saw anything of the request."""

    def call(port: int) -> BaseException:
        order = Order(case.url.format(port=port), connect=case.connect, read=case.read)
        return failure(lambda: CLIENTS[client](order))

    if case.act is not None:
        with Provider(case.act) as provider:
            error = call(provider.port)
        return error, provider.saw_the_request
    if case.place is not None:
        with case.place() as port:
            return call(port), False
    return call(0), False


@pytest.mark.parametrize(("client", "name"), TABLE)
def test_an_exception_proves_what_really_happened(client: str, name: str) -> None:
    case = CASES[name]
    error, saw_the_request = suffered(client, case)
    assert classify(error) is case.expected(client)
    assert not (saw_the_request and classify(error) is NOT_SENT)
    # A handler may have made calls before this one: for it, not sent is not "not executed".
    answered = name.startswith("answered")
    assert is_ambiguous(error) is (case.expected(client) is AMBIGUOUS and not answered)
    assert not says_not_executed(error)


# ── tries before the last ─────────────────────────────────────────────────────────────────────────

REDIRECTED = sorted(set(CLIENTS) - {"http.client"})


@pytest.mark.parametrize("client", REDIRECTED)
@pytest.mark.parametrize("status", ["303 See Other", "307 Temporary Redirect"])
def test_a_redirect_that_leads_nowhere_was_sent_before(client: str, status: str) -> None:
    with refused() as nobody:
        elsewhere = f"Location: http://127.0.0.1:{nobody}/receipt"
        with Provider(say(answer(status, elsewhere))) as provider:
            order = Order(f"http://127.0.0.1:{provider.port}/charge")
            error = failure(lambda: CLIENTS[client](order))
    assert provider.saw_the_request
    assert classify(error) is AMBIGUOUS


@pytest.mark.parametrize("client", ["aiohttp", "urllib3"])
def test_what_was_sent_again_unasked_was_sent_before(client: str) -> None:
    with Provider(acts.hang_up, once=True) as provider:
        order = Order(f"http://127.0.0.1:{provider.port}/charge", method="PUT")
        error = failure(lambda: CLIENTS[client](order))
    assert type(error).__name__ in {"ClientConnectorError", "MaxRetryError"}
    assert provider.saw_the_request
    assert classify(error) is AMBIGUOUS


@pytest.mark.parametrize("act", [acts.hang_up, say(answer("503 Busy"))])
def test_a_session_that_retries_was_heard_before(act: Act) -> None:
    retries = urllib3.Retry(3, allowed_methods=None, status_forcelist=[503])
    with requests.Session() as session, Provider(act, once=True) as provider:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        error = failure(lambda: session.post(f"http://127.0.0.1:{provider.port}/charge", BODY))
    assert isinstance(error, requests.ConnectionError)
    assert isinstance(error.args[0].reason, urllib3.exceptions.NewConnectionError)
    assert provider.saw_the_request
    assert classify(error) is AMBIGUOUS


def test_a_session_whose_every_try_was_refused_sent_nothing() -> None:
    with requests.Session() as session, refused() as port:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=3))
        error = failure(lambda: session.post(f"http://127.0.0.1:{port}/charge", BODY))
    assert classify(error) is NOT_SENT


# ── answers that are no refusal of the call ───────────────────────────────────────────────────────


def one_after_the_other(*answers: bytes) -> Act:
    """One answer for each request; nothing at all for an empty one."""

    def act(provider: Provider, connection: socket.socket) -> None:
        provider.read(connection)
        connection.sendall(answers[len(provider.received) - 1])

    return act


@pytest.mark.parametrize("client", sorted(set(REDIRECTED) - PASS_ANSWERS_ON))
@pytest.mark.parametrize("status", ["404 No", "403 No"])
def test_a_receipt_that_cannot_be_read_says_nothing_of_the_charge(client: str, status: str) -> None:
    """Redirected by a 303, a client asks for the receipt: it has charged before."""
    charged = answer("303 See Other", "Location: /receipt")
    with Provider(one_after_the_other(charged, answer(status))) as provider:
        order = Order(f"http://127.0.0.1:{provider.port}/charge")
        error = failure(lambda: CLIENTS[client](order))
    assert [sent.partition(b" ")[0] for sent in provider.received] == [b"POST", b"GET"]
    assert classify(error) is AMBIGUOUS


def test_a_redirect_that_is_not_followed_is_no_refusal() -> None:
    with Provider(say(answer("303 See Other", "Location: /receipt"))) as provider:
        url = f"http://127.0.0.1:{provider.port}/charge"
        charge = partial(httpx.post, url, content=BODY, trust_env=False, verify=TRUST)
        error = failure(lambda: charge(follow_redirects=False).raise_for_status())
    assert classify(error) is AMBIGUOUS


def test_a_success_that_cannot_be_read_is_no_refusal() -> None:
    """aiohttp's ContentTypeError has the status of the answer, which says that it was paid."""
    paid = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\npaid"

    async def call(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.post(url, data=BODY) as response:
            await response.json()

    with Provider(say(paid)) as provider:
        url = f"http://127.0.0.1:{provider.port}/charge"
        error = failure(lambda: asyncio.run(call(url)))
    assert type(error) is aiohttp.ContentTypeError
    assert classify(error) is AMBIGUOUS
    assert not is_ambiguous(error)  # it was answered: what a handler made of that is its policy's


@pytest.mark.parametrize(
    ("first", "proves"),
    [(b"", AMBIGUOUS), (answer("503 Busy"), AMBIGUOUS), (answer("429 Slow down"), ANSWERED)],
)
def test_a_refusal_after_a_try_that_may_have_been_heard_proves_nothing(
    first: bytes, proves: WasSent
) -> None:
    """The charge that was made may be the very reason why the second try is refused."""
    retries = urllib3.Retry(3, allowed_methods=None, status_forcelist=[429, 503])
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        with Provider(one_after_the_other(first, answer("400 Paid already"))) as provider:
            url = f"http://127.0.0.1:{provider.port}/charge"
            error = failure(lambda: session.post(url, BODY).raise_for_status())
    assert len(provider.received) == 2
    assert classify(error) is proves


def test_aiohttp_may_have_deleted_before_it_is_told_that_nothing_is_there() -> None:
    """It sends a DELETE again when a kept connection turns out to be dead, and does not say so."""
    with Provider(say(answer("404 No"))) as provider:
        order = Order(f"http://127.0.0.1:{provider.port}/charge", method="DELETE")
        error = failure(lambda: by_aiohttp(order))
    assert classify(error) is AMBIGUOUS


def test_an_answer_whose_tries_cannot_be_read_proves_nothing() -> None:
    answered = requests.Response()
    answered.status_code = 404
    assert classify(requests.HTTPError("no", response=answered)) is ANSWERED
    del answered.history
    assert classify(requests.HTTPError("no", response=answered)) is AMBIGUOUS


def test_a_refusal_after_a_password_was_asked_for_is_a_refusal() -> None:
    with Provider(one_after_the_other(CHALLENGE, answer("404 No"))) as provider:
        url = f"http://127.0.0.1:{provider.port}/charge"
        auth = httpx.DigestAuth("a", "b")
        charge = partial(httpx.post, url, content=BODY, trust_env=False, verify=TRUST)
        error = failure(lambda: charge(auth=auth).raise_for_status())
    assert len(provider.received) == 2
    assert classify(error) is ANSWERED


CHALLENGE = answer("401 Who?", 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"')


def by_requests_digest(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, BODY, auth=requests.auth.HTTPDigestAuth("a", "b"))


def by_httpx_digest(url: str, library: Any = httpx) -> None:
    auth = library.DigestAuth("a", "b")
    library.post(url, content=BODY, auth=auth, trust_env=False, verify=TRUST)


@pytest.mark.parametrize(
    "call",
    [by_requests_digest, by_httpx_digest, partial(by_httpx_digest, library=httpx2)],
    ids=["requests", "httpx", "httpx2"],
)
def test_a_password_that_was_asked_for_means_a_request_before(call: Callable[[str], None]) -> None:
    with Provider(say(CHALLENGE), once=True) as provider:
        error = failure(lambda: call(f"http://127.0.0.1:{provider.port}/charge"))
    assert provider.saw_the_request
    assert classify(error) is AMBIGUOUS


# ── proxies ───────────────────────────────────────────────────────────────────────────────────────

PROXIED = ["httpx", "httpx2", "awaited httpx", "requests", "urllib3", "aiohttp"]


@pytest.mark.parametrize("client", PROXIED)
def test_a_proxy_that_refuses_the_tunnel_passed_nothing_on(client: str) -> None:
    with Provider(say(answer("403 No"))) as proxy:
        order = Order("https://provider.invalid/charge", proxy=f"http://127.0.0.1:{proxy.port}")
        error = failure(lambda: CLIENTS[client](order))
    assert proxy.received[0].startswith(b"CONNECT")
    assert not proxy.saw_the_request
    assert classify(error) is NOT_SENT


def test_a_tunnel_of_the_standard_librarys_passes_nothing_on_either() -> None:
    with Provider(say(answer("403 No"))) as proxy:
        tunnel = http.client.HTTPSConnection("127.0.0.1", proxy.port)
        tunnel.set_tunnel("provider.invalid")
        error = failure(lambda: tunnel.request("POST", "/charge", BODY))
    assert not proxy.saw_the_request
    assert classify(error) is NOT_SENT


@pytest.mark.parametrize("client", PROXIED)
def test_a_proxy_that_cannot_be_reached_passed_nothing_on(client: str) -> None:
    with refused() as port:
        order = Order("http://provider.invalid/charge", proxy=f"http://127.0.0.1:{port}")
        error = failure(lambda: CLIENTS[client](order))
    assert classify(error) is NOT_SENT


@pytest.mark.parametrize("act", [acts.hang_up, acts.reset])
@pytest.mark.parametrize("client", PROXIED)
def test_a_proxy_that_took_the_request_may_have_passed_it_on(client: str, act: Act) -> None:
    """urllib3 says "Unable to connect to proxy" even so."""
    with Provider(act) as proxy:
        order = Order("http://provider.invalid/charge", proxy=f"http://127.0.0.1:{proxy.port}")
        error = failure(lambda: CLIENTS[client](order))
    assert proxy.saw_the_request
    assert classify(error) is AMBIGUOUS


# ── pools ─────────────────────────────────────────────────────────────────────────────────────────


ONE = httpx.Limits(max_connections=1)
FULL = httpx.Timeout(LONG, pool=SHORT)


def pooled_httpx(url: str) -> None:
    with (
        httpx.Client(trust_env=False, verify=TRUST, limits=ONE, timeout=LONG) as client,
        client.stream("POST", f"{url}/first"),
    ):
        client.post(f"{url}/second", timeout=FULL)


def pooled_awaited_httpx(url: str) -> None:
    async def call() -> None:
        async with (
            httpx.AsyncClient(trust_env=False, verify=TRUST, limits=ONE, timeout=LONG) as client,
            client.stream("POST", f"{url}/first"),
        ):
            await client.post(f"{url}/second", timeout=FULL)

    asyncio.run(call())


def pooled_urllib3(url: str) -> None:
    with urllib3.PoolManager(maxsize=1, block=True) as pools:
        first = pools.request("POST", f"{url}/first", preload_content=False)
        try:
            pools.request("POST", f"{url}/second", pool_timeout=SHORT)
        finally:
            first.close()


def pooled_aiohttp(url: str) -> None:
    full = aiohttp.ClientTimeout(connect=SHORT)

    async def call() -> None:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
            session.post(f"{url}/first"),
            session.post(f"{url}/second", timeout=full),
        ):
            pass

    asyncio.run(call())


@pytest.mark.parametrize(
    "call", [pooled_httpx, pooled_awaited_httpx, pooled_urllib3, pooled_aiohttp]
)
def test_a_full_pool_sends_nothing(call: Callable[[str], None]) -> None:
    with Provider(acts.say_and_stay(HALF)) as provider:
        error = failure(lambda: call(f"http://127.0.0.1:{provider.port}"))
    assert [data.split()[1] for data in provider.received] == [b"/first"]
    assert classify(error) is NOT_SENT


# ── chains ────────────────────────────────────────────────────────────────────────────────────────


def fail_as(name: str) -> None:
    """Raise what httpx raises then."""
    error, _ = suffered("httpx", CASES[name])
    raise error


def refused_after(first: Callable[[], None]) -> BaseException:
    """What a handler raises that answers one failure with another call."""

    def handler(port: int) -> None:
        try:
            first()
        except (httpx.TransportError, TimeoutError):
            httpx.post(f"http://127.0.0.1:{port}", trust_env=False, verify=TRUST)

    with refused() as port:
        error = failure(lambda: handler(port))
    assert isinstance(error, httpx.ConnectError)
    return error


@pytest.mark.parametrize("first", ["reset", "silent", "hung up"])
def test_a_second_call_that_was_refused_does_not_excuse_the_first(first: str) -> None:
    assert classify(refused_after(lambda: fail_as(first))) is AMBIGUOUS
    assert classify(refused_after(lambda: fail_as("connect time-out"))) is NOT_SENT


def test_the_systems_own_time_out_before_a_refused_call_counts() -> None:
    def time_out() -> None:
        raise TimeoutError

    assert classify(refused_after(time_out)) is AMBIGUOUS


def made_from(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


def made_during(outer: BaseException, context: BaseException) -> BaseException:
    outer.__context__ = context
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), None),
        (OSError("disk full"), None),
        (semel.NotExecuted(), NOT_SENT),
        (made_from(semel.NotExecuted(), TimeoutError()), NOT_SENT),
        (made_from(ValueError(), semel.NotExecuted()), NOT_SENT),
        (made_during(ValueError(), semel.NotExecuted()), None),
        (semel.OutcomeUnknown(), AMBIGUOUS),
        (asyncio.CancelledError(), AMBIGUOUS),
        (KeyboardInterrupt(), AMBIGUOUS),
        # Somebody else's error may stand for several tries, of which the cause is the last.
        (made_from(ValueError(), ConnectionRefusedError()), None),
        (made_during(ValueError(), ConnectionRefusedError()), None),
        (made_from(ValueError(), TimeoutError()), AMBIGUOUS),
        (made_during(ConnectionRefusedError(), TimeoutError()), AMBIGUOUS),
        (made_from(made_during(ValueError(), TimeoutError()), KeyError()), AMBIGUOUS),
        # Without the frames of a client these prove nothing, whatever their class.
        (ConnectionRefusedError(), AMBIGUOUS),
        (made_from(httpx.ConnectTimeout(""), TimeoutError()), AMBIGUOUS),
        (made_from(httpx.ConnectError(""), httpx.ReadError("")), AMBIGUOUS),
        (OSError(113, "no route to host"), AMBIGUOUS),
        (ssl.SSLError(1, "bad record"), AMBIGUOUS),
        (ssl.SSLCertVerificationError(1, "who?"), AMBIGUOUS),
        (socket.gaierror(-2, "who?"), AMBIGUOUS),
        (requests.ConnectionError(), AMBIGUOUS),
        (requests.HTTPError(), AMBIGUOUS),
        (requests.exceptions.InvalidJSONError(), None),
        (httpx.TooManyRedirects(""), AMBIGUOUS),
        (urllib.error.URLError("unknown url type"), None),
        (http.client.InvalidURL(), AMBIGUOUS),
        (ExceptionGroup("", [ConnectionRefusedError(), semel.NotExecuted()]), AMBIGUOUS),
        (ExceptionGroup("", [ConnectionRefusedError(), ValueError()]), None),
        (ExceptionGroup("", [ConnectionRefusedError(), TimeoutError()]), AMBIGUOUS),
        (ExceptionGroup("", [ExceptionGroup("", [semel.NotExecuted()])]), NOT_SENT),
        (BaseExceptionGroup("", [ValueError(), asyncio.CancelledError()]), AMBIGUOUS),
    ],
    ids=repr,
)
def test_in_a_chain_or_a_group_the_more_dangerous_class_wins(
    error: BaseException, expected: WasSent | None
) -> None:
    assert classify(error) is expected


def test_a_circle_of_causes_and_members_ends() -> None:
    inner = ValueError()
    group = ExceptionGroup("", [inner, ConnectionRefusedError()])
    inner.__cause__, group.__context__ = group, inner
    assert classify(group) is None
    assert classify(made_from(inner, made_during(TimeoutError(), inner))) is AMBIGUOUS


def test_a_group_of_refused_calls_was_not_sent() -> None:
    members = [suffered(client, CASES["refused"])[0] for client in ("httpx", "aiohttp")]
    assert classify(BaseExceptionGroup("", members)) is NOT_SENT


# ── what takes a proof away ───────────────────────────────────────────────────────────────────────


def test_a_process_pools_exception_has_lost_its_earlier_tries() -> None:
    spawn = multiprocessing.get_context("spawn")
    with refused() as port, ProcessPoolExecutor(1, mp_context=spawn) as pool:
        there = pool.submit(socket.create_connection, ("127.0.0.1", port))
        error = failure(there.result)
    assert isinstance(error, ConnectionRefusedError)
    assert classify(error) is AMBIGUOUS


def package_of_others(name: str, source: str, folder: Path) -> Any:
    """A package that is installed beside others."""
    path = folder / "site-packages" / name / "__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_any_package_between_the_caller_and_the_client_may_have_tried_before(
    tmp_path: Path,
) -> None:
    theirs = package_of_others("sdk", "def attempt(call):\n    return call()\n", tmp_path)
    with refused() as port:
        order = Order(f"http://127.0.0.1:{port}/charge")
        error = failure(lambda: theirs.attempt(lambda: by_httpx(order)))
    assert classify(error) is AMBIGUOUS
    # The package of the handler that asked for the call is the caller itself.
    assert classify(error, "sdk") is NOT_SENT
    # What a handler did before its last call is for its policy to judge.
    assert not is_ambiguous(error)


def test_code_that_is_in_no_file_may_be_anybodys() -> None:
    package: dict[str, Any] = {"__name__": "tenacity.retry"}
    exec("def attempt(call):\n    call()\n", package)
    error = failure(lambda: package["attempt"](lambda: fail_as("refused")))
    assert classify(error) is AMBIGUOUS


def test_a_client_of_the_standard_librarys_that_tries_twice_is_in_doubt() -> None:
    """xmlrpc sends again after a reset, and then raises "connection refused" alone."""
    with Provider(acts.reset, once=True) as provider:
        proxy = xmlrpc.client.ServerProxy(f"http://127.0.0.1:{provider.port}/")
        error = failure(proxy.charge)
    assert isinstance(error, ConnectionRefusedError)
    assert provider.saw_the_request
    assert classify(error) is AMBIGUOUS


REFUSED = sorted(CLIENTS)


@pytest.mark.parametrize("client", REFUSED)
def test_without_its_trace_a_refused_call_is_in_doubt(client: str) -> None:
    error, _ = suffered(client, CASES["refused"])
    assert classify(error) is NOT_SENT
    assert classify(error.with_traceback(None)) is AMBIGUOUS


@pytest.mark.parametrize("client", REFUSED)
def test_a_trace_that_does_not_begin_with_the_caller_is_in_doubt(client: str) -> None:
    error, _ = suffered(client, CASES["refused"])
    trace = error.__traceback__
    while trace is not None and not is_on_a_way(trace.tb_frame):
        trace = trace.tb_next
    assert trace is not None
    assert classify(error.with_traceback(trace)) is AMBIGUOUS


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests", "urllib3", "aiohttp", "urllib"])
def test_a_trace_whose_variables_are_gone_is_in_doubt(client: str) -> None:
    error, _ = suffered(client, CASES["refused"])
    traceback.clear_frames(error.__traceback__)
    assert classify(error) is AMBIGUOUS
    assert is_ambiguous(error)


def under_other_names() -> Any:
    """httpx as a later version may have it."""
    source = Path(httpx._client.__file__).read_text()
    source = source.replace("_send_handling_", "_send_with_")
    later = types.ModuleType("httpx._client")
    later.__package__, later.__file__ = "httpx", httpx._client.__file__
    exec(compile(source, httpx._client.__file__, "exec"), later.__dict__)
    return later


def test_a_client_whose_functions_are_renamed_is_in_doubt() -> None:
    client = under_other_names().Client(trust_env=False, verify=TRUST, follow_redirects=True)
    with refused() as nobody, client:
        elsewhere = f"Location: http://127.0.0.1:{nobody}/receipt"
        with Provider(say(answer("307 There", elsewhere))) as provider:
            error = failure(lambda: client.post(f"http://127.0.0.1:{provider.port}/", content=BODY))
    assert isinstance(error, httpx.ConnectError)
    assert provider.saw_the_request
    assert classify(error) is AMBIGUOUS
    assert is_ambiguous(error)


@pytest.mark.parametrize("library", [httpx, httpx2, requests, urllib3, aiohttp])
@pytest.mark.parametrize("version", ["99.0", "0.1", "unheard of", ""])
def test_a_version_that_was_not_read_is_in_doubt(
    library: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _ = suffered(library.__name__, CASES["refused"])
    monkeypatch.setattr(library, "__version__", version)
    assert classify(error) is AMBIGUOUS
    assert is_ambiguous(error)


def test_a_hook_between_a_client_and_its_connection_may_have_sent() -> None:
    class Twice(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            return super().handle_request(request)

    with refused() as port, httpx.Client(transport=Twice(verify=TRUST)) as client:
        error = failure(lambda: client.post(f"http://127.0.0.1:{port}/charge", content=BODY))
    assert isinstance(error, httpx.ConnectError)
    assert classify(error) is AMBIGUOUS


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests", "http.client"])
def test_an_address_nobody_can_read_is_not_sent(client: str) -> None:
    bad = "http://127.0.0.1:9/\x7f" if client == "http.client" else "http://[no/charge"
    assert classify(failure(lambda: CLIENTS[client](Order(bad)))) is NOT_SENT
