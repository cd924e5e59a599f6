"""The client reads a server's contract; where nobody has told a lifetime it assumes none."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client import BudgetSpent, CallJournal, CallOutcomeUnknown, ContractError, KeyExpired
from semel.client.contract import FRESH, parsed, terms_of
from semel.client.responses import kept_for
from semel.core.frozen import replace
from tests.client.answers import answer, call
from tests.client.conftest import Shop
from tests.client.kinds import KINDS, QUICK, Client

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOTH_COLOURS = pytest.mark.parametrize("kind", ["httpx", "aiohttp"])
ONE_TRY = replace(QUICK, tries=1)
HOUR = timedelta(hours=1)
DAY = 86_400
LONG_PATH = "/".join(["1" * 40] * 40)


def opened(kind: str, journal: Path | None, **options: Any) -> Any:
    given: dict[str, Any] = {
        "budget": QUICK,
        "contract": True,
        "credentials": lambda call: {"Authorization": "Bearer ann's first"},
        "keep_headers": ["X-Order"],
    }
    return KINDS[kind](journal, 30.0, **{**given, **options})


def pay(client: Client, url: str, order: str, how: str = "", **arguments: Any) -> Any:
    sale = {"order": order, "how": how}
    return client.post(url, json=sale, headers={"X-Order": order}, name=order, **arguments)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    moved = time.time() + seconds
    monkeypatch.setattr(time, "time", lambda: moved)


# ── a server of semel's ───────────────────────────────────────────────────────────────────────────


@EVERY_KIND
def test_the_key_goes_where_and_how_the_contract_says(kind: str, shop: Shop, order: str) -> None:
    """Quoted, in the body, and bare: one client, without a setting."""
    with opened(kind, None) as client:
        for path in ("strict", "in-body", "ietf"):
            this = f"{order}-{path}"
            assert pay(client, f"{shop.url}/{path}", this).status == 201
            assert len(shop.effects.of(this)) == 1
    assert shop.keys(f"{order}-strict")[0].startswith('"')
    assert shop.keys(f"{order}-in-body") == ["-"]


@EVERY_KIND
def test_a_call_is_resumed_while_the_server_keeps_its_answer(
    kind: str, shop: Shop, order: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(kind, journal, budget=ONE_TRY) as client, pytest.raises(BudgetSpent):
        pay(client, f"{shop.url}/strict", order, "busy at first")
    later(monkeypatch, DAY - QUICK.within.total_seconds() - 70)
    with opened(kind, journal) as client:
        (done,) = client.resume()
        assert client.pending() == []
    assert done.error is None
    assert len(shop.effects.of(order)) == 1
    assert len(set(shop.keys(order))) == 1


@BOTH_COLOURS
def test_a_call_is_not_sent_when_its_lifetime_may_end_within_the_budget(
    kind: str, shop: Shop, order: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(kind, journal, budget=ONE_TRY) as client, pytest.raises(BudgetSpent):
        pay(client, f"{shop.url}/ietf", order, "busy at first")
    later(monkeypatch, DAY - QUICK.within.total_seconds() - 50)
    with opened(kind, journal) as client:
        (done,) = client.resume()
        assert len(client.pending()) == 1
    assert isinstance(done.error, KeyExpired)
    assert len(shop.keys(order)) == 1


@BOTH_COLOURS
def test_where_nobody_has_told_a_lifetime_none_is_assumed(
    kind: str, shop: Shop, order: str, journal: Path
) -> None:
    """A contract that is read later does not say what held when the call was made."""
    url = f"{shop.url}/ietf"
    with opened(kind, journal, budget=ONE_TRY, contract=False) as client:
        with pytest.raises(BudgetSpent):
            pay(client, url, order, "busy at first", key=f"own-{order}")
        (done,) = client.resume()
        assert isinstance(done.error, CallOutcomeUnknown)
        assert done.error.status is None
        with pytest.raises(CallOutcomeUnknown, match="give resume_within="):
            pay(client, url, order, "busy at first", key=f"own-{order}")
    with opened(kind, journal) as client:
        (done,) = client.resume()
        assert isinstance(done.error, CallOutcomeUnknown)
    assert len(shop.keys(order)) == 1
    with opened(kind, journal, contract=False, resume_within=HOUR) as client:
        (done,) = client.resume()
    assert done.error is None
    assert len(shop.effects.of(order)) == 1


def test_a_shorter_time_of_ones_own_counts(
    shop: Shop, order: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("httpx", journal, budget=ONE_TRY) as client, pytest.raises(BudgetSpent):
        pay(client, f"{shop.url}/ietf", order, "busy at first")
    later(monkeypatch, 3_700)
    with opened("httpx", journal, resume_within=HOUR) as client:
        (done,) = client.resume()
    assert isinstance(done.error, KeyExpired)
    assert len(shop.keys(order)) == 1


def test_an_answer_tells_how_long_its_key_counts(
    shop: Shop, order: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a contract: the header of the first answer lets the key be used again."""
    url, key = f"{shop.url}/ietf", f"own-{order}"
    with opened("httpx", journal, contract=False) as client:
        first = pay(client, url, order, key=key)
        assert pay(client, url, order, key=key).body == first.body
        with CallJournal(journal) as read:
            (entry,) = read.finished()
        assert entry.call.terms.lifetime == pytest.approx(DAY, abs=60)
        later(monkeypatch, DAY)
        with pytest.raises(KeyExpired, match="nothing was sent"):
            pay(client, url, order, key=key)
    assert shop.keys(order) == [key, key]


def test_an_expiry_is_counted_by_the_servers_clock_or_not_at_all() -> None:
    expires, date = "Wed, 18 Nov 2026 13:00:00 GMT", "Wed, 18 Nov 2026 12:00:00 GMT"
    made = call(created_at=1_000.0)
    told = answer(201, {}, idempotency_expires=expires, date=date)
    assert kept_for(made, told, 1_010.0) == 3_610
    for headers in (
        {"idempotency_expires": expires},
        {"idempotency_expires": "never", "date": date},
        {"date": date},
    ):
        assert kept_for(made, answer(201, {}, **headers), 1_010.0) is None


# ── contracts of every kind ───────────────────────────────────────────────────────────────────────


class Server:
    """Serves a contract that a test may change, and notes every call with where its key was."""

    def __init__(self) -> None:
        guard = semel.Guard("memory://", tenant=None, publish=True)
        self.contract: Any = guard.contract()
        self.statuses: list[int] = []
        self.busy = 0
        self.reads = 0
        self.location = ""
        self.calls: list[dict[str, str]] = []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                server.reads += 1
                status = server.statuses.pop(0) if server.statuses else 200
                held = server.contract
                octets = held if isinstance(held, bytes) else json.dumps(held).encode()
                self._send(status, octets)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                server.calls.append({name.lower(): text for name, text in self.headers.items()})
                server.busy -= 1
                self._send(503 if server.busy >= 0 else 200, b"{}")

            def _send(self, status: int, octets: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(octets)))
                if server.location:
                    self.send_header("Location", server.location)
                self.end_headers()
                self.wfile.write(octets)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()


def key_of(contract: Any) -> Any:
    return contract["default"]["key"]


def many_ways(step: str) -> dict[str, str]:
    """A route whose pattern, if it were matched, would keep the client busy for years."""
    return {"method": "*", "path": "/" + step * 40 + "/end"}


Wrong = Callable[[Any], Any]
WRONG: dict[str, Wrong] = {
    "no JSON": lambda contract: b"<html>",
    "deep": lambda contract: b"[" * 100_000,
    "a list": lambda contract: [],
    "another version": lambda contract: contract.update(version=2),
    "version True": lambda contract: contract.update(version=True),
    "no routes": lambda contract: contract.pop("routes"),
    "a wrong route": lambda contract: contract.update(routes=[{"method": "POST", "path": "/{"}]),
    "no promises": lambda contract: contract.update(default=None),
    "other methods": lambda contract: contract["default"].update(methods=["PATCH"]),
    "a text of methods": lambda contract: contract["default"].update(methods="POST"),
    "no lifetime": lambda contract: contract["default"].pop("lifetime"),
    "lifetime -1": lambda contract: contract["default"].update(lifetime=-1),
    "lifetime 0": lambda contract: contract["default"].update(lifetime=0),
    "lifetime True": lambda contract: contract["default"].update(lifetime=True),
    "lifetime of a text": lambda contract: contract["default"].update(lifetime="86400"),
    "lifetime 1e400": lambda contract: contract["default"].update(lifetime=10**400),
    "shorter than a call": lambda contract: contract["default"].update(lifetime=1),
    "no places": lambda contract: key_of(contract).update(places=[]),
    "a place by rules": lambda contract: key_of(contract).update(places=[{"in": "request"}]),
    "an unknown place": lambda contract: key_of(contract).update(places=[{"in": "query"}]),
    "no header": lambda contract: key_of(contract).update(places=[{"in": "header", "name": "a b"}]),
    "no pointer": lambda contract: key_of(contract).update(places=[{"in": "body", "pointer": ""}]),
    "quoted or not": lambda contract: key_of(contract).pop("quoted_only"),
    "lifetime NaN": lambda contract: contract["default"].update(lifetime=math.nan),
    "lifetime without end": lambda contract: contract["default"].update(lifetime=math.inf),
    "a huge document": lambda contract: contract.update(about="x" * 2**20),
    "paths of any depth": lambda contract: contract.update(routes=[many_ways("{a:path}")]),
    "parameters side by side": lambda contract: contract.update(routes=[many_ways("{a}")]),
    "numbers side by side": lambda contract: contract.update(routes=[many_ways("{a:int}")]),
    "segments with two parameters": lambda contract: contract.update(routes=[many_ways("{a}{b}/")]),
    "credentials as a key": lambda contract: key_of(contract).update(
        places=[{"in": "header", "name": "Authorization"}]
    ),
    "the length as a key": lambda contract: key_of(contract).update(
        places=[{"in": "header", "name": "content-LENGTH"}]
    ),
    "a deep place": lambda contract: key_of(contract).update(
        places=[{"in": "body", "pointer": "/k" * 100_000}]
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_contract_that_is_wrong_is_an_error_and_nothing_is_sent(
    wrong: str, server: Server, journal: Path
) -> None:
    changed = WRONG[wrong](server.contract)
    server.contract = changed if isinstance(changed, bytes | list) else server.contract
    with opened("httpx", journal) as client:
        with pytest.raises(ContractError):
            client.post(f"{server.url}/{LONG_PATH}", json={"a": 1})
        assert client.pending() == []
    assert server.calls == []


@EVERY_KIND
def test_a_contract_elsewhere_is_none(kind: str, server: Server) -> None:
    """A redirect is not followed: another host says nothing about this one."""
    other = Server()
    thread = threading.Thread(target=other.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server.statuses = [307]
    server.location = f"{other.url}/.well-known/idempotency"
    with opened(kind, None) as client, pytest.raises(ContractError) as raised:
        client.post(f"{server.url}/pay", json={"a": 1})
    other.http.shutdown()
    other.http.server_close()
    assert raised.value.unreadable
    assert (other.reads, other.calls, server.calls) == (0, [], [])


WORDS: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.5,
    math.nan,
    "",
    "\ud800",
    [],
    [[]],
    {},
    {"": {}},
)


@pytest.mark.parametrize("member", ["contract", "default", "key", "place", "route"])
def test_no_type_in_a_contract_is_a_mistake_of_the_client(member: str, server: Server) -> None:
    """Each member of each part, with each type: followed, or a ContractError; nothing else."""
    told = server.contract
    told["routes"] = [{"method": "POST", "path": "/other", **copy.deepcopy(told["default"])}]
    parts = {"contract": told, "default": told["default"], "route": told["routes"][0]}
    parts |= {"key": key_of(told), "place": key_of(told)["places"][0]}
    budget = replace(QUICK, tries=1)
    for name, word in itertools.product(parts[member], WORDS):
        held, parts[member][name] = parts[member][name], word
        with contextlib.suppress(ContractError):
            read = parsed(answer(200, told), 0.0)
            terms_of(read.promises("POST", "http://a/pay"), None, None, budget)
        parts[member][name] = held
    assert (
        terms_of(
            parsed(answer(200, told), 0.0).promises("POST", "http://a/pay"), None, None, budget
        ).lifetime
        == told["default"]["lifetime"]
    )


@EVERY_KIND
def test_a_contract_is_read_once_and_again_when_that_was_long_ago(
    kind: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.statuses = [503, 429]  # which pass
    with opened(kind, None) as client:
        for _ in range(3):
            client.post(f"{server.url}/pay", json={"a": 1})
        assert (server.reads, len(server.calls)) == (3, 3)
        server.contract = {}
        real = time.monotonic
        with monkeypatch.context() as patched:
            patched.setattr(time, "monotonic", lambda: real() + FRESH + 1)
            with pytest.raises(ContractError):
                client.post(f"{server.url}/pay", json={"a": 1})
    assert len(server.calls) == 3


@BOTH_COLOURS
@pytest.mark.parametrize("status", [404, 301, 401, 503])
def test_a_contract_that_is_not_there_is_an_error(kind: str, status: int, server: Server) -> None:
    server.statuses = [status] * QUICK.tries
    with opened(kind, None) as client, pytest.raises(ContractError) as raised:
        client.post(f"{server.url}/pay", json={"a": 1})
    assert raised.value.unreadable
    assert server.reads == (QUICK.tries if status == 503 else 1)
    assert server.calls == []


def test_the_first_route_that_fits_counts(server: Server) -> None:
    quoted = copy.deepcopy(server.contract["default"])
    quoted["key"]["quoted_only"] = True
    server.contract["routes"] = [{"method": "POST", "path": "/pay/{order}", **quoted}]
    with opened("httpx", None) as client:
        for path in ("/pay/17", "/pay/1%37", "/pay/17/more", "/pay"):
            client.post(server.url + path, json={"a": 1})
        with pytest.raises(ContractError, match="escaped slash"):
            client.post(f"{server.url}/pay/1%2F7", json={"a": 1})
    sent = [each["idempotency-key"].startswith('"') for each in server.calls]
    assert sent == [True, True, False, False]


def test_a_route_that_promises_nothing_does_not_fall_back_to_the_default(server: Server) -> None:
    server.contract["routes"] = [{"method": "POST", "path": "/free", "methods": []}]
    with opened("httpx", None) as client:
        with pytest.raises(ContractError, match="promises nothing for POST /free"):
            client.post(f"{server.url}/free", json={"a": 1})
        assert server.calls == []
        client.post(f"{server.url}/pay", json={"a": 1})
    assert len(server.calls) == 1


def test_what_the_caller_chose_must_agree_with_the_contract(server: Server) -> None:
    key = key_of(server.contract)
    key["quoted_only"] = True
    for options in ({"key_in": "X-Key"}, {"quoted": False}, {"key_in": semel.body("key")}):
        with opened("httpx", None, **options) as client, pytest.raises(ContractError):
            client.post(f"{server.url}/pay", json={"a": 1})
    assert server.calls == []
    key["places"].append({"in": "header", "name": "X-Key"})
    with opened("httpx", None, key_in="x-key") as client:
        client.post(f"{server.url}/pay", json={"a": 1})
    key["places"].append({"in": "request"})
    with opened("httpx", None, key_in="Y-Key") as client:
        client.post(f"{server.url}/pay", json={"a": 1})
    assert ["x-key" in each for each in server.calls] == [True, False]
    assert "y-key" in server.calls[1]


CHANGES: dict[str, Wrong] = {
    "CallOutcomeUnknown": lambda contract: key_of(contract).update(quoted_only=True),
    "KeyExpired": lambda contract: contract["default"].update(lifetime=3_600),
    "ContractError": lambda contract: contract.update(default=None),
}


@BOTH_COLOURS
@pytest.mark.parametrize("error", CHANGES)
def test_a_contract_that_changed_is_no_permission(
    kind: str, error: str, server: Server, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another form of the key, a shorter lifetime, no promise: the call is told of, not sent."""
    server.busy = 1
    with opened(kind, journal, budget=ONE_TRY) as client, pytest.raises(BudgetSpent):
        client.post(f"{server.url}/pay", json={"a": 1})
    CHANGES[error](server.contract)
    later(monkeypatch, 3_700)
    with opened(kind, journal) as client:
        (done,) = client.resume()
        assert len(client.pending()) == 1
    assert type(done.error).__name__ == error
    assert len(server.calls) == 1


def test_a_longer_lifetime_does_not_make_an_old_call_younger(
    server: Server, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.contract["default"]["lifetime"] = 3_600
    server.busy = 1
    with opened("httpx", journal, budget=ONE_TRY) as client, pytest.raises(BudgetSpent):
        client.post(f"{server.url}/pay", json={"a": 1})
    server.contract["default"]["lifetime"] = 10 * DAY
    later(monkeypatch, 3_700)
    with opened("httpx", journal) as client:
        (done,) = client.resume()
    assert isinstance(done.error, KeyExpired)
    assert len(server.calls) == 1


def test_where_the_contract_cannot_be_read_the_servers_other_calls_wait(
    server: Server, journal: Path
) -> None:
    server.busy = 2
    with opened("httpx", journal, budget=ONE_TRY) as client:
        for _ in range(2):
            with pytest.raises(BudgetSpent):
                client.post(f"{server.url}/pay", json={"a": 1})
    server.contract = b""
    with opened("httpx", journal) as client:
        (done,) = client.resume()
        assert isinstance(done.error, ContractError)
        assert len(client.pending()) == 2
    assert server.reads == 2
