"""Webhooks in: only what is proved is believed, once, in whatever order it comes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any, cast

import httpx
import pytest

from semel.core.operations.notables import BrowseNotables
from semel.core.operations.outbox import NoteEvent
from semel.core.operations.requests import Advance, Suspend
from semel.core.records import HeaderView, Identity, OnLapse, Response, State
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal, PointKind
from semel.core.unknown.evidence import Absent, CannotTell, Happened
from semel.core.unknown.provider_events import witnessed
from semel.errors import ConfigurationError, StoreUnavailable
from semel.guard import Guard
from semel.inbox.inbox import Inbox, ProviderEvent, Stamp
from semel.outbox import signatures
from semel.stores import open_backend
from semel.stores.base import Backend, Transactional
from tests.databases import WAITING_FOR_A_KEY, connect, executed
from tests.inbox.served_inbox import SECRET, read
from tests.scene import MINUTE, Scene
from tests.servers import AppServer, gunicorn, uvicorn
from tests.stores.harness import Harness
from tests.stores.together import claim
from tests.waiting import PATIENCE, patient, until

NOW = 1_700_000_000.0
OLD_SECRET = "whsec_" + "b2xkLXNlY3JldC1vZi10aGUtYmFuay1hbmQtc2hvcA=="


def letter(
    said: Any,
    event: str = "evt_1",
    *,
    secret: str = SECRET,
    at: float = NOW,
) -> tuple[dict[str, str], bytes]:
    """An event as the bank sends it."""
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    signature = signatures.sign(signatures.secrets(secret), event, int(at), body)
    headers = {"Webhook-Id": event, "Webhook-Timestamp": str(int(at))}
    return headers | {"Webhook-Signature": signature}, body


def paid(identity: Identity, charge: str = "ch_7") -> dict[str, str]:
    return {"type": "payment.succeeded", "identity": identity.hex(), "id": charge}


def voided(identity: Identity) -> dict[str, str]:
    return {"type": "payment.voided", "identity": identity.hex()}


def bank(scene: Scene, reader: Any = read, **options: Any) -> Inbox:
    return Inbox(scene.guard, "bank", SECRET, reader, clock=lambda: NOW, **options)


def said(answer: Response) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["status"]


# ── believing ─────────────────────────────────────────────────────────────────────────────────────


class TestEvidence:
    def test_an_event_settles_its_record(self, scene: Scene) -> None:
        identity = scene.unknown()
        assert said(bank(scene).receive(*letter(paid(identity)))) == (200, "settled")
        assert scene.state(identity) is State.COMPLETED
        assert scene.case(identity).record.reason == "webhook bank evt_1: happened (ch_7)"

    def test_an_event_sent_again_is_known_and_not_read(self, scene: Scene) -> None:
        identity = scene.unknown()
        reads: list[str] = []

        def counting(event: ProviderEvent) -> Any:
            reads.append(event.id)
            return read(event)

        taken = bank(scene, counting)
        assert said(taken.receive(*letter(paid(identity)))) == (200, "settled")
        assert said(taken.receive(*letter(paid(identity)))) == (200, "known")
        assert reads == ["evt_1"]

    def test_the_same_id_from_another_source_is_another_event(self, quick: Scene) -> None:
        identity = quick.unknown()
        bank(quick).receive(*letter(paid(identity)))
        other = Inbox(quick.guard, "courier", SECRET, read, clock=lambda: NOW)
        assert said(other.receive(*letter(paid(identity)))) == (200, "settled before")

    def test_an_older_event_undoes_nothing(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        identity = scene.unknown()
        taken = bank(scene)
        assert said(taken.receive(*letter(paid(identity), "evt_2"))) == (200, "settled")
        before = scene.case(identity)
        late = letter(voided(identity), "evt_1", at=NOW - 200)
        assert said(taken.receive(*late)) == (200, "settled before")
        assert scene.case(identity) == before
        assert "says otherwise" in caplog.text

    def test_that_it_happened_after_all_is_an_error_to_be_seen(
        self, quick: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        identity = quick.released()
        answer = bank(quick).receive(*letter(paid(identity)))
        assert said(answer) == (200, "settled before")
        (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "compare the ledgers" in line.getMessage()

    def test_while_the_handler_runs_the_provider_is_to_come_again(self, scene: Scene) -> None:
        """The holder knows more; should it die, the event is still wanted."""
        identity = scene.held()
        taken = bank(scene)
        answer = taken.receive(*letter(paid(identity)))
        assert said(answer) == (503, "still running")
        assert 1 <= int(dict(answer.headers)[b"retry-after"]) <= 60
        scene.travel(2 * MINUTE)
        assert said(taken.receive(*letter(paid(identity)))) == (200, "settled")

    def test_what_is_not_ours_is_thanked_for_and_ignored(self, quick: Scene) -> None:
        taken = bank(quick)
        nobody = Identity(b"\xfe" * 32)
        assert said(taken.receive(*letter(paid(nobody), "evt_1"))) == (200, "ignored")
        assert said(taken.receive(*letter({"type": "payout"}, "evt_2"))) == (200, "ignored")
        assert said(taken.receive(*letter({"type": "payout"}, "evt_2"))) == (200, "known")

    def test_what_an_event_said_is_noted_for_operators(self, scene: Scene) -> None:
        """Also what came too early, and what could not be applied; never what is in its body."""
        identity, held = scene.unknown(), scene.held()
        nobody = Identity(b"\xfe" * 32)
        taken = bank(scene)
        for number, said_of in enumerate((identity, held, nobody)):
            taken.receive(*letter({**paid(said_of), "memo": "of-a-secret"}, f"evt_{number}"))
        taken.receive(*letter(voided(identity), "evt_3"))
        taken.receive(*letter(paid(identity), "evt_0"))  # known: it is not noted again
        scene.guard.close()
        entries = scene.harness.perform(BrowseNotables(9)).entries
        noted = {json.loads(each.detail)["event"]: each for each in entries}
        assert {each.kind for each in entries} == {"webhook"}
        assert {each.identity for each in entries} == {identity, held, nobody}
        details = {event: json.loads(each.detail) for event, each in noted.items()}
        said = {"source": "bank", "says": "happened", "provider_id": "ch_7"}
        assert details == {
            "evt_0": {**said, "event": "evt_0", "came": "settled", "applied": True},
            "evt_1": {**said, "event": "evt_1", "came": "still running", "applied": False},
            "evt_2": {
                **said,
                "event": "evt_2",
                "came": "ignored",
                "applied": False,
                "why": "there is no such record",
            },
            "evt_3": {
                "source": "bank",
                "event": "evt_3",
                "came": "settled before",
                "says": "absent",
                "final": True,
                "applied": False,
            },
        }
        assert (noted["evt_0"].tenant, noted["evt_2"].tenant) == ("tern", "")
        assert "of-a-secret" not in repr(details)
        found = scene.harness.perform(BrowseNotables(9, identity=identity)).entries
        assert {json.loads(each.detail)["event"] for each in found} == {"evt_0", "evt_3"}

    def test_what_a_stranger_sends_is_not_noted(self, quick: Scene) -> None:
        headers, body = letter(paid(quick.unknown()))
        bank(quick).receive({**headers, "Webhook-Signature": "v1,forged"}, body)
        bank(quick, lambda event: 1 / 0).receive(headers, body)
        quick.guard.close()
        (entry,) = quick.harness.perform(BrowseNotables(9)).entries
        assert json.loads(entry.detail) == {
            "source": "bank",
            "event": "evt_1",
            "came": "not read",
            "applied": False,
            "why": "ZeroDivisionError",
        }

    def test_evidence_that_decides_nothing_is_noted(self, quick: Scene) -> None:
        identity = quick.unknown()
        for event, evidence in (("evt_1", CannotTell()), ("evt_2", Absent())):
            taken = bank(quick, lambda _, e=evidence: (identity, e))
            assert said(taken.receive(*letter({}, event))) == (200, "noted")
        assert quick.state(identity) is State.UNKNOWN

    def test_an_operations_call_gets_its_result(self, scene: Scene) -> None:
        identity = scene.unknown("made", intent="charged")
        taken = bank(scene, lambda event: (identity, Happened(event.json(), "ch_7")))
        assert said(taken.receive(*letter({"id": "ch_7"}))) == (200, "settled")
        assert scene.state(identity) is State.IN_PROGRESS

    def test_an_event_about_one_call_does_not_settle_another(self, scene: Scene) -> None:
        """The first call's event comes late, when the second is in doubt."""
        identity = scene.held(on_lapse=OnLapse.RESUME)
        written = Journal().reaching("reserved", PointKind.CALL, 1).intending("charged")
        fence = scene.fences[identity]
        scene.harness.perform(Advance(identity, fence, journal.encode(written)))
        scene.harness.perform(Suspend(identity, fence, "TimeoutError", 0))

        def receive(event: str, *name: str) -> tuple[int, str]:
            taken = bank(scene, lambda event: (identity, Happened({"id": "ch_7"}), *name))
            return said(taken.receive(*letter({}, event)))

        assert receive("evt_1") == (500, "not usable")  # which of the two?
        assert receive("evt_2", "reserved") == (200, "noted")
        assert scene.state(identity) is State.UNKNOWN
        assert receive("evt_1", "charged") == (200, "settled")
        assert scene.state(identity) is State.IN_PROGRESS

    async def test_awaited(self, quick: Scene) -> None:
        identity = quick.unknown()

        async def reader(event: ProviderEvent) -> Any:
            return read(event)

        taken = bank(quick, reader)
        assert said(await taken.areceive(*letter(paid(identity)))) == (200, "settled")
        assert said(await taken.areceive(*letter(paid(identity)))) == (200, "known")


# ── not believing ─────────────────────────────────────────────────────────────────────────────────


class TestForgeries:
    """Nothing of these may change a record, be remembered, or be told from one another."""

    @pytest.fixture
    def identity(self, quick: Scene) -> Iterator[Identity]:
        unknown = quick.unknown()
        yield unknown
        assert quick.state(unknown) is State.UNKNOWN
        noted = quick.harness.perform(NoteEvent("bank", "evt_1", None))
        assert not noted.before

    def refused(self, quick: Scene, headers: Any, body: bytes) -> None:
        assert said(bank(quick).receive(headers, body)) == (401, "refused")

    def test_another_secret(self, quick: Scene, identity: Identity) -> None:
        self.refused(quick, *letter(paid(identity), secret=OLD_SECRET))

    @pytest.mark.parametrize("name", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
    def test_a_header_that_is_missing(self, quick: Scene, identity: Identity, name: str) -> None:
        headers, body = letter(paid(identity))
        del headers[name]
        self.refused(quick, headers, body)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("Webhook-Id", "evt_2"),
            ("Webhook-Timestamp", str(int(NOW) + 1)),
            ("Webhook-Timestamp", "now"),
            ("Webhook-Timestamp", "9" * 400),
            ("Webhook-Timestamp", "١٧"),
            ("Webhook-Signature", ""),
            ("Webhook-Signature", "v1,"),
            ("Webhook-Signature", "v1,AAAA v2,BBBB nonsense \u00ff"),
            ("Webhook-Signature", "v1," * 100_000),
        ],
    )
    def test_a_header_that_was_changed(
        self, quick: Scene, identity: Identity, name: str, value: str
    ) -> None:
        headers, body = letter(paid(identity))
        self.refused(quick, headers | {name: value}, body)

    @pytest.mark.parametrize("change", [b"", b" ", b"{}", b"\x00\xff"])
    def test_a_body_that_was_changed(self, quick: Scene, identity: Identity, change: bytes) -> None:
        headers, body = letter(paid(identity))
        self.refused(quick, headers, body + change if change else b"")

    @pytest.mark.parametrize("at", [NOW - 301, NOW + 301, 0.0, NOW - 86_400])
    def test_an_event_from_another_time(self, quick: Scene, identity: Identity, at: float) -> None:
        self.refused(quick, *letter(paid(identity), at=at))

    def test_a_name_too_long_to_be_kept(self, quick: Scene, identity: Identity) -> None:
        self.refused(quick, *letter(paid(identity), "e" * 256))

    def test_a_body_too_large(self, quick: Scene, identity: Identity) -> None:
        headers, body = letter(paid(identity))
        assert bank(quick, max_body=10).receive(headers, body).status == 413


@pytest.mark.parametrize("at", [NOW - 299, NOW + 299])
def test_clocks_may_differ_a_little(quick: Scene, at: float) -> None:
    identity = quick.unknown()
    assert bank(quick).receive(*letter(paid(identity), at=at)).status == 200


def test_secrets_are_exchanged_without_losing_an_event(quick: Scene) -> None:
    taken = Inbox(quick.guard, "bank", [SECRET, OLD_SECRET], read, clock=lambda: NOW)
    for number, secret in enumerate((SECRET, OLD_SECRET)):
        identity = quick.unknown()
        sent = letter(paid(identity), f"evt_{number}", secret=secret)
        assert said(taken.receive(*sent)) == (200, "settled")


# ── readers and stores that fail ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "reader",
    [
        lambda event: event.json()["no such field"],
        lambda event: "evidence",
        lambda event: ("not hexadecimal", Happened()),
        lambda event: ("00ff", Happened()),
        lambda event: (b"\0" * 32, "paid"),
        lambda event: (b"\0" * 32, Happened(), 3),
        lambda event: (None, Happened()),
    ],
)
def test_an_event_that_was_not_read_is_to_be_sent_again(
    quick: Scene, reader: Any, caplog: pytest.LogCaptureFixture
) -> None:
    taken = bank(quick, reader)
    assert said(taken.receive(*letter({}))) == (500, "not read")
    assert "was not read" in caplog.text
    assert not quick.harness.perform(NoteEvent("bank", "evt_1", None)).before


def test_a_body_that_is_no_json_is_the_readers_to_refuse(quick: Scene) -> None:
    assert said(bank(quick).receive(*letter(b"\x00\xffrubbish"))) == (500, "not read")


def test_an_answer_that_cannot_be_kept_is_to_be_sent_again(quick: Scene) -> None:
    identity = quick.unknown()
    bad = Happened(Response(42, (), b""))
    taken = bank(quick, lambda _: (identity, bad))
    assert said(taken.receive(*letter({}))) == (500, "not usable")
    assert quick.state(identity) is State.UNKNOWN


class Failing:
    """A store that fails at its n-th operation, before or after having done it."""

    def __init__(self, backend: Backend, at: int, done: bool) -> None:
        self._store, self._left, self._done = backend.blocking(), at, done

    def perform(self, op: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._done:
            raise StoreUnavailable("down", applied=False)
        reply: Any = self._store.perform(op)
        if self._left == 0:
            raise StoreUnavailable("no answer")
        return reply


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_wherever_the_store_fails_the_next_delivery_makes_it_good(
    quick: Scene, at: int, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = quick.unknown()
    taken, sent = bank(quick), letter(paid(identity))
    with monkeypatch.context() as patch:
        store = Failing(quick.harness.backend, at, done)
        patch.setattr(quick.guard.backend, "blocking", lambda: store)
        status = taken.receive(*sent).status
    assert status == (200 if at == 3 else 503)  # a settling whose answer was lost is asked again
    assert taken.receive(*sent).status == 200
    assert quick.state(identity) is State.COMPLETED
    assert said(taken.receive(*sent)) == (200, "known")


# ── other signatures, wrong settings ──────────────────────────────────────────────────────────────


def stripe_like(secret: bytes) -> Any:
    """``Stripe-Signature: t=…,v1=…`` over ``t.body``; the event's id is in the body."""

    def verify(headers: HeaderView, body: bytes) -> Stamp | None:
        pairs = dict(part.split("=", 1) for part in headers["stripe-signature"].split(","))
        wanted = hmac.new(secret, f"{pairs['t']}.".encode() + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(wanted, pairs["v1"]):
            return None
        return Stamp(json.loads(body)["event"], float(pairs["t"]))

    return verify


def test_a_signature_of_another_kind(quick: Scene) -> None:
    identity = quick.unknown()
    verify = stripe_like(b"secret")
    taken = Inbox(quick.guard, "stripe", None, read, verify=verify, clock=lambda: NOW)
    body = json.dumps(paid(identity) | {"event": "evt_1"}).encode()

    def header(at: int, secret: bytes = b"secret") -> dict[str, str]:
        digest = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        return {"Stripe-Signature": f"t={at},v1={digest}"}

    assert taken.receive(header(int(NOW), b"guess"), body).status == 401
    assert taken.receive(header(int(NOW) - 400), body).status == 401
    assert taken.receive({"Stripe-Signature": "nonsense"}, body).status == 401
    assert taken.receive({}, body).status == 401
    assert said(taken.receive(header(int(NOW)), body)) == (200, "settled")


@pytest.mark.parametrize(
    ("source", "secrets", "options"),
    [
        ("bank", None, {}),
        ("bank", SECRET, {"verify": lambda headers, body: None}),
        ("bank", "not a secret", {}),
        ("bank", b"short", {}),
        ("bank", [], {}),
        ("", SECRET, {}),
    ],
)
def test_wrong_settings_are_refused_at_the_start(
    quick: Scene, source: str, secrets: Any, options: Any
) -> None:
    with pytest.raises(ConfigurationError):
        Inbox(quick.guard, source, secrets, read, **options)


def test_a_reader_names_records_by_bytes_and_hexadecimal() -> None:
    identity = bytes(range(32))
    assert witnessed((identity, Happened())) == (identity, Happened(), None)
    assert witnessed([identity.hex().upper(), Absent()]) == (identity, Absent(), None)
    assert witnessed((identity, Happened(), "charged")) == (identity, Happened(), "charged")


# ── under real servers ────────────────────────────────────────────────────────────────────────────


Served = tuple[AppServer, Scene, str]
"""A server, records it knows, and the address of its inbox."""


@pytest.fixture(scope="module", params=["uvicorn", "gunicorn"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AppServer, Scene, str]]:
    store = f"sqlite:///{tmp_path_factory.mktemp('inbox')}/semel.db"
    env = {"SHOP_STORE": patient(store)}
    backend = open_backend(store, timeout=PATIENCE)
    scene = Scene(Harness(backend, lambda _: None, 0, "sync"))
    scene.unknown()  # which makes the schema
    module = "tests.inbox.served_inbox"
    server = (
        uvicorn(f"{module}:app", env=env)
        if request.param == "uvicorn"
        else gunicorn(f"{module}:application", env=env)
    )
    path = "/webhooks/bank/" if request.param == "uvicorn" else "/"
    with server:
        yield server, scene, server.url + path
    backend.close()


def test_over_a_real_server(served: Served) -> None:
    _, scene, url = served
    one, two = scene.unknown(), scene.unknown()
    now = time.time()

    def post(sent: tuple[dict[str, str], bytes]) -> tuple[int, str]:
        answer = httpx.post(url, headers=sent[0], content=sent[1], timeout=PATIENCE)
        return answer.status_code, answer.json()["status"]

    assert post(letter(paid(one), "evt_1", at=now)) == (200, "settled")
    assert post(letter(paid(one), "evt_1", at=now)) == (200, "known")
    assert post(letter(voided(one), "evt_0", at=now - 60)) == (200, "settled before")
    assert post(letter(paid(two), "evt_2", at=now, secret=OLD_SECRET)) == (401, "refused")
    assert post(letter(paid(two), "evt_2", at=now - 600)) == (401, "refused")
    assert post(letter(b"x" * 5000, "evt_3", at=now)) == (413, "too large")
    assert httpx.get(url, timeout=PATIENCE).status_code == 405
    assert (scene.state(one), scene.state(two)) == (State.COMPLETED, State.UNKNOWN)


def test_garbage_on_the_wire_is_refused_and_the_server_lives(
    served: Served,
) -> None:
    server, scene, url = served
    path = url.removeprefix(server.url)
    for body in (b"\x00\xff" * 100, b"Content-Length: -1\r\n\r\n", b"{" * 3000):
        for length in (len(body), 10**18, -1):
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
                sock.sendall(head.encode() + body)
                if length == len(body):
                    assert b" 401 " in sock.recv(4096)
    identity = scene.unknown()
    sent = letter(paid(identity), "evt_9", at=time.time())
    answer = httpx.post(url, headers=sent[0], content=sent[1], timeout=PATIENCE)
    assert answer.status_code == 200


def test_options_have_the_defaults_the_guide_names() -> None:
    from semel.inbox.inbox import KEEP, MAX_BODY

    assert (timedelta(minutes=5), timedelta(days=7)) == (signatures.TOLERANCE, KEEP)
    assert MAX_BODY == 1024 * 1024
    assert Guard("memory://", tenant=None).backend is not None


# ── a record that nobody sees yet ─────────────────────────────────────────────────────────────────


@pytest.fixture(params=["postgres_url", "mariadb_url"])
def own_guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    url = request.getfixturevalue(request.param)
    open_backend(url).migrate()
    guard = Guard(patient(url), tenant=None, maintenance=None)
    yield guard
    guard.close()


@pytest.mark.parametrize("awaited", [False, True])
def test_an_event_about_an_atomic_run_under_way_waits_for_its_end(
    own_guard: Guard, awaited: bool
) -> None:
    """It would be ignored, and so be used up: the run may end in doubt."""
    url, backend = own_guard.backend.url, cast("Transactional", own_guard.runtime.backend)
    inbox = Inbox(own_guard, "bank", SECRET, read, clock=lambda: NOW)
    op = claim()
    running = backend.begin(op.identity)
    assert running is not None
    running.perform(op)

    async def receive() -> Response:
        answer = await inbox.areceive(*letter(voided(op.identity)))
        await own_guard.aclose()
        return answer

    def receiving() -> Response:
        if awaited:
            return asyncio.run(receive())
        return inbox.receive(*letter(voided(op.identity)))

    with ThreadPoolExecutor(1) as threads, closing(connect(url)) as outside:
        answer = threads.submit(receiving)
        found = WAITING_FOR_A_KEY[url.partition(":")[0]]
        until(lambda: answer.done() or executed(outside, found))
        assert not answer.done()
        running.perform(Suspend(op.identity, op.fence))
        running.commit()
        # It was read as evidence; a record that names no terms is settled by nobody.
        assert said(answer.result(PATIENCE)) == (200, "noted")
