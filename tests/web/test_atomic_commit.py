"""A COMMIT whose answer never comes: the truth is what stands in the database under the lock.

The cable between application and PostgreSQL is cut by a proxy, before or after the server got the
COMMIT, or while it is still on its way.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import semel
from semel.runtime.leases import Lease
from tests.databases import WAITING_FOR_A_KEY, end_connections
from tests.forms import in_proof
from tests.servers import PostgresServer
from tests.stores.relay import hang_up
from tests.waiting import PATIENCE, until
from tests.web.bank import NOTHING, PAID, Bank, Ledger, Says, Script, bank, pay
from tests.web.cable import Cable, Line
from tests.web.conftest import MakeGuard
from tests.web.hurry import no_pauses

MakeBank = Callable[..., Bank]


@pytest.fixture(params=["postgres", "mariadb"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    ledger = Ledger(request.getfixturevalue(f"{request.param}_url"))
    ledger.found()
    return ledger


@pytest.fixture
def cable(ledger: Ledger) -> Iterator[Cable]:
    with Cable(ledger.url) as one:
        yield one


@pytest.fixture(params=["asgi", "wsgi", *in_proof("def")])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_bank(
    colour: str, ledger: Ledger, cable: Cable, make_guard: MakeGuard, runner: asyncio.Runner
) -> MakeBank:
    def make(script: Script, factory: Any = semel.ietf, **options: Any) -> Bank:
        guard = make_guard(
            f"{cable.url}?timeout={PATIENCE:.0f}",
            policy=factory(mode="atomic", **options),
            maintenance=None,
            breaker=None,
        )
        guard.start()
        return bank(colour, guard, ledger, runner, script)

    return make


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, logger="semel"):
        yield


@pytest.fixture
def outage(cable: Cable, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Nobody comes through from the COMMIT on, until the cable is mended.

    Who asks again in vain does so until a lease would be over. Nobody waits for that: the pauses
    between two tries are none, and each takes a quarter of the lease.
    """
    tries, held = no_pauses(monkeypatch), Lease.held

    def later(lease: Lease, now: float) -> bool:
        passed = tries[-1] * lease.duration / 4 if tries and cable.refusing else 0.0
        return held(lease, now + passed)

    monkeypatch.setattr(Lease, "held", later)

    def begins(cut: Any) -> Any:
        def silence(line: Line, message: bytes) -> None:
            cable.refusing = True
            cut(line, message)

        return silence

    return begins


def cut_before(line: Line, message: bytes) -> None:
    hang_up(line.far)
    hang_up(line.near)


def cut_after(line: Line, message: bytes) -> None:
    line.commit(message)
    hang_up(line.near)
    hang_up(line.far)


def late(ledger: Ledger, *, arrives: bool) -> Callable[[Line, bytes], None]:
    """The application gives up while its COMMIT is on its way: the transaction is still open."""

    def cut(line: Line, message: bytes) -> None:
        hang_up(line.near)
        until(lambda: ledger.ask(WAITING_FOR_A_KEY[ledger.url.partition(":")[0]]))
        if arrives:
            line.commit(message)
        hang_up(line.far)

    return cut


def test_a_commit_that_was_not_received_is_nothing(make_bank: MakeBank, cable: Cable) -> None:
    one = make_bank(pay())
    cable.cut = cut_before
    reply = one.send()
    assert (reply.status, reply.code) == (503, "not-executed")
    assert one.ledger.all() == NOTHING
    assert (one.send().status, one.ledger.all(), one.script.runs) == (201, PAID, 2)


def test_a_commit_whose_answer_is_lost_is_a_success(make_bank: MakeBank, cable: Cable) -> None:
    one = make_bank(pay())
    cable.cut = cut_after
    first, again = one.send(), one.send()
    assert (first.status, first.replayed) == (201, False)
    assert first.one("idempotency-expires") == again.one("idempotency-expires") is not None
    assert (again.replayed, again.body) == (True, first.body)
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_on_its_way_is_waited_for_under_the_lock(
    make_bank: MakeBank, cable: Cable, ledger: Ledger, arrives: bool
) -> None:
    one = make_bank(pay())
    cable.cut = late(ledger, arrives=arrives)
    reply = one.send()
    if arrives:
        assert (reply.status, one.ledger.all()) == (201, PAID)
        assert one.send().body == reply.body
    else:
        assert (reply.code, one.ledger.all()) == ("not-executed", NOTHING)
        assert (one.send().status, one.ledger.all()) == (201, PAID)


@pytest.mark.parametrize("cut", [cut_before, cut_after])
@pytest.mark.parametrize(
    ("factory", "state"), [(semel.ietf, "unknown"), (semel.stripe, "completed")]
)
def test_a_doubt_stands_whatever_becomes_of_its_commit(
    make_bank: MakeBank, cable: Cable, cut: Any, factory: Any, state: str
) -> None:
    one = make_bank(in_doubt, factory)
    cable.cut = cut
    assert one.send().status == 500
    assert one.ledger.all() == (0, 0, [state])
    assert one.send().status in (409, 500)
    assert one.script.runs == 1


@pytest.mark.parametrize("cut", [cut_before, cut_after])
def test_a_commit_that_can_never_be_ascertained_is_no_success(
    make_bank: MakeBank, cable: Cable, outage: Any, cut: Any
) -> None:
    one = make_bank(pay())
    cable.cut = outage(cut)
    reply = one.send()
    assert (reply.status, reply.code) == (503, "completion-not-durable")
    assert reply.one("retry-after") == "1"
    cable.refusing = False
    again = one.send()
    assert (again.status, again.replayed) == (201, cut is cut_after)
    assert one.ledger.all() == PAID


def in_doubt() -> Any:
    yield from pay()()
    raise semel.OutcomeUnknown("sent, and no answer")


@pytest.mark.parametrize("cut", [cut_before, cut_after])
@pytest.mark.parametrize(
    ("factory", "state"), [(semel.ietf, "unknown"), (semel.stripe, "completed")]
)
def test_a_doubt_is_recorded_after_an_outage_that_outlasts_its_caller(
    make_bank: MakeBank, cable: Cable, outage: Any, cut: Any, factory: Any, state: str
) -> None:
    one = make_bank(in_doubt, factory)
    cable.cut = outage(cut)
    assert one.send().status in (500, 503)
    cable.refusing = False
    until(lambda: one.ledger.all() == (0, 0, [state]))
    assert one.send().status in (409, 500)
    assert one.script.runs == 1


def test_a_doubt_whose_transaction_was_lost_before_is_recorded_after_the_outage(
    make_bank: MakeBank, cable: Cable, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_pauses(monkeypatch)

    def script() -> Any:
        yield from pay()()
        cable.refusing = True
        end_connections(ledger.url)
        raise semel.OutcomeUnknown("sent, and no answer")

    one = make_bank(script)
    assert one.send().status == 500
    assert one.ledger.all() == NOTHING
    cable.refusing = False
    until(lambda: one.ledger.all() == (0, 0, ["unknown"]))
    assert (one.send().status, one.script.runs) == (409, 1)


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def mortal(mortal_server: PostgresServer) -> Iterator[tuple[PostgresServer, Ledger]]:
    with mortal_server.database() as url:
        ledger = Ledger(url)
        ledger.found()
        yield mortal_server, ledger


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize("colour", ["asgi", "wsgi"])
def test_postgresql_killed_at_the_commit_and_started_again(
    mortal: tuple[PostgresServer, Ledger],
    colour: str,
    received: bool,
    make_guard: MakeGuard,
    runner: asyncio.Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks what became of it comes until the server is there again, however long."""
    server, ledger = mortal
    no_pauses(monkeypatch, seconds=0.02)
    starting = threading.Thread(target=server.start)

    def dies(line: Line, message: bytes) -> None:
        if received:
            line.commit(message)
        server.kill()
        starting.start()

    with Cable(ledger.url) as cable:
        guard = make_guard(
            f"{cable.url}?timeout={PATIENCE:.0f}",
            policy=semel.ietf(mode="atomic", lease=timedelta(minutes=10)),
            maintenance=None,
            breaker=None,
        )
        guard.start()
        one = bank(colour, guard, ledger, runner, pay())
        cable.cut = dies
        reply = one.send()
        if received:
            assert (reply.status, ledger.all()) == (201, PAID)
            assert one.send().replayed
        else:
            assert (reply.code, ledger.all()) == ("not-executed", NOTHING)
            assert one.send().status == 201
    starting.join()
    assert ledger.all() == PAID


def test_a_handlers_answer_is_sent_only_after_the_commit(
    make_bank: MakeBank, cable: Cable, ledger: Ledger
) -> None:
    """A streamed one as well: not a byte of it while the COMMIT is on its way."""
    one = make_bank(pay(says=Says(200, (b"a", b"b"))))
    seen: list[Any] = []

    def look(line: Line, message: bytes) -> None:
        seen.append(ledger.all())
        line.commit(message)
        hang_up(line.near)
        hang_up(line.far)

    cable.cut = look
    assert one.send().body == b"ab"
    assert (seen, ledger.all()) == ([NOTHING], PAID)
