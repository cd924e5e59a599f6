"""How connections to PostgreSQL are opened, set up, counted and ended, in both colours."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

import semel
from semel.core.operations import Claimed
from semel.errors import ConfigurationError, StoreUnavailable
from semel.runtime.events import Event
from semel.stores.postgres import PostgresBackend
from semel.stores.sql import pooled
from semel.stores.sql.pooled import OpenConnections, PooledConnection, PoolStatistics
from semel.testing.contract.event_loop_thread import EventLoopThread
from semel.testing.contract.records import claim, new_fence, new_identity
from semel.worker.wake_up import CHANNELS, listener_for
from tests.cli.commandline import one_sentence, process, run
from tests.conftest import note
from tests.proof.floors import missing, rounds
from tests.servers import PostgresServer
from tests.servers.certificates import Authority
from tests.servers.ports import free_port
from tests.waiting import PATIENCE, auntil, until

ADDRESS = "127.0.0.1"
HBA = f"""
local   all     postgres                        trust
hostssl all     shop        {ADDRESS}/32        cert
host    all     token       {ADDRESS}/32        scram-sha-256
host    all     all         {ADDRESS}/32        trust
"""


@pytest.fixture(scope="module")
def authority() -> Iterator[Authority]:
    """In a folder that the server can enter, whoever it runs as."""
    with TemporaryDirectory(prefix="semel-") as folder:
        Path(folder).chmod(0o755)
        yield Authority(Path(folder))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[PostgresServer]:
    """It wants certificates from `shop`, and passwords from `token`."""
    hba, ours = authority.folder / "pg_hba.conf", authority.issue("server", address=ADDRESS)
    hba.write_text(HBA)
    settings = {"ssl": "on", "ssl_cert_file": f"{ours}.pem", "ssl_key_file": f"{ours}.key"}
    settings |= {"ssl_ca_file": str(authority.certificate), "hba_file": str(hba)}
    settings |= {"max_connections": "60"}
    server = PostgresServer(tcp=True, settings=settings)
    server.way.give(Path(f"{ours}.key"))
    with server as started:
        with psycopg.connect(started.url, autocommit=True) as connection:
            for role in ("shop", "token"):
                connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'first'".encode())
        yield started


class Place:
    """A database of the test's own on that server, as one role or another."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.admin = url
        self._name = url.partition("@/")[2].partition("?")[0]

    def url(self, role: str, host: str = ADDRESS, **options: str) -> str:
        query = urlencode({"application_name": "under_test", **options})
        return f"postgresql://{role}@{host}:{self.server.port}/{self._name}?{query}"

    def ask(self, text: str) -> Any:
        with psycopg.connect(self.admin, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]

    def sessions(self) -> int:
        there = "FROM pg_stat_activity WHERE application_name = 'under_test'"
        number: int = self.ask(f"SELECT count(*) {there}")
        return number


@pytest.fixture
def place(server: PostgresServer) -> Iterator[Place]:
    with server.database() as url:
        PostgresBackend(url).migrate()
        yield Place(server, url)


class InColour:
    """A backend as threads, or an event loop, use it."""

    def __init__(self, colour: str) -> None:
        self._portal = EventLoopThread() if colour == "async" else None
        self._backends: list[PostgresBackend] = []

    def open(self, url: str, **options: Any) -> PostgresBackend:
        backend = PostgresBackend(url, **{"timeout": PATIENCE} | options)
        self._backends.append(backend)
        return backend

    def claim(self, backend: PostgresBackend) -> object:
        op = claim(new_identity(), new_fence())
        if self._portal is None:
            return backend.blocking().perform(op)

        async def awaited() -> object:
            return await backend.awaited().perform(op)

        return self._portal.call(awaited())

    def in_transaction(self, backend: PostgresBackend, *texts: str) -> Any:
        """What the last statement of a handler finds, in a transaction that is committed."""
        if self._portal is not None:
            return self._portal.call(self._in_transaction(backend, *texts))
        transaction: Any = backend.begin(None)
        cursor = transaction.connection.cursor()
        for text in texts:
            cursor.execute(text)
        found = cursor.fetchone() if cursor.description else None
        transaction.commit()
        transaction.roll_back()
        return found

    async def _in_transaction(self, backend: PostgresBackend, *texts: str) -> Any:
        transaction: Any = await backend.abegin(None)
        cursor = transaction.connection.cursor()
        for text in texts:
            await cursor.execute(text)
        found = await cursor.fetchone() if cursor.description else None
        await transaction.commit()
        await transaction.roll_back()
        return found

    def close(self) -> None:
        for backend in self._backends:
            if self._portal is None:
                backend.close()
            else:
                self._portal.call(backend.aclose())
        if self._portal is not None:
            self._portal.close()


@pytest.fixture(params=["sync", "async"])
def used(request: pytest.FixtureRequest) -> Iterator[InColour]:
    colour = InColour(request.param)
    yield colour
    colour.close()


# ── the driver ────────────────────────────────────────────────────────────────────────────────────


def test_a_driver_that_cannot_be_loaded_is_one_sentence() -> None:
    """As where neither the machine nor a wheel has libpq."""
    done = process("doctor", "postgresql://db/shop", PSYCOPG_IMPL="none")
    assert done.returncode == 2
    assert "psycopg cannot be used" in one_sentence(done)
    assert "pip install 'semel[postgres-binary]'" in done.stderr


def test_psycopg_s_own_pool_is_not_needed(place: Place) -> None:
    program = (
        "import sys; sys.modules['psycopg_pool'] = None; "
        "from semel.stores import open_backend; print(open_backend(sys.argv[1]).migrate())"
    )
    command = [sys.executable, "-c", program, place.url("postgres")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert int(done.stdout) >= 1


# ── certificates ──────────────────────────────────────────────────────────────────────────────────


def tls(authority: Authority, name: str | None = None, mode: str = "verify-full") -> dict[str, str]:
    options = {"sslmode": mode, "sslrootcert": str(authority.certificate)}
    if name is not None:
        options |= {"sslcert": f"{authority.folder / name}.pem"}
        options |= {"sslkey": f"{authority.folder / name}.key"}
    return options


def test_a_client_certificate_opens_the_store(
    used: InColour, place: Place, authority: Authority
) -> None:
    authority.issue("shop")
    backend = used.open(place.url("shop", **tls(authority, "shop")))
    assert isinstance(used.claim(backend), Claimed)
    shown = place.ask(
        "SELECT client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
        " WHERE application_name = 'under_test' AND ssl"
    )
    assert shown == "/CN=shop"


@pytest.mark.parametrize("name", [None, "somebody"])
def test_who_shows_no_certificate_or_another_s_is_refused(
    used: InColour, place: Place, authority: Authority, name: str | None
) -> None:
    authority.issue("somebody")
    backend = used.open(place.url("shop", **tls(authority, name)))
    with pytest.raises(StoreUnavailable, match="cannot connect") as refused:
        used.claim(backend)
    assert refused.value.applied is False


def test_a_server_that_another_authority_vouches_for_is_refused(
    used: InColour, place: Place, authority: Authority, tmp_path: Path
) -> None:
    others = Authority(tmp_path)
    options = tls(authority, "shop") | {"sslrootcert": str(others.certificate)}
    authority.issue("shop")
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        used.claim(used.open(place.url("shop", **options)))


def test_a_server_of_another_name_is_refused_where_the_name_is_to_be_checked(
    used: InColour, place: Place, authority: Authority
) -> None:
    authority.issue("shop")

    def claims(mode: str) -> object:
        options = tls(authority, "shop", mode)
        return used.claim(used.open(place.url("shop", "db.test", hostaddr=ADDRESS, **options)))

    with pytest.raises(StoreUnavailable, match="cannot connect"):
        claims("verify-full")
    assert isinstance(claims("verify-ca"), Claimed)


# ── passwords that change ─────────────────────────────────────────────────────────────────────────

Password = Callable[[], str | Awaitable[str]]


class Tokens:
    """Gives out the password of the role `token`, which it may change at any time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.given: list[str] = []
        self.threads: set[int] = set()
        self.renew()

    def renew(self) -> None:
        """The one before is no longer good for anything."""
        with self._lock:
            self.current = f"secret-{next(self._numbers)}"
            self._place.ask(f"ALTER ROLE token PASSWORD '{self.current}'")

    def __call__(self) -> str:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.given.append(self.current)
            return self.current

    async def awaited(self) -> str:
        return self()

    def ended(self) -> str:
        """One that ends before the server sees it, every other time."""
        token = self()
        if len(self.given) % 2:
            self.renew()
        return token


@pytest.fixture
def tokens(place: Place) -> Tokens:
    return Tokens(place)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_password_of_the_moment_is_asked_for_with_each_connection(
    used: InColour, place: Place, tokens: Tokens, kind: str
) -> None:
    password: Password = tokens if kind == "plain" else tokens.awaited
    backend = used.open(place.url("token"), password=password, max_lifetime=1e-6)
    for _ in range(3):
        assert isinstance(used.claim(backend), Claimed)
        tokens.renew()
    assert tokens.given == ["secret-1", "secret-2", "secret-3"]
    assert backend.pool_statistics()["operations"].opened == 3


def test_a_connection_outlives_its_password(used: InColour, place: Place, tokens: Tokens) -> None:
    backend = used.open(place.url("token"), password=tokens)
    for _ in range(3):
        assert isinstance(used.claim(backend), Claimed)
        tokens.renew()
    assert tokens.given == ["secret-1"]


async def test_a_plain_function_never_runs_in_the_event_loop(place: Place) -> None:
    asked: list[int] = []

    def password() -> str:
        asked.append(threading.get_ident())
        return "first"

    await asyncio.to_thread(place.ask, "ALTER ROLE token PASSWORD 'first'")
    backend = PostgresBackend(place.url("token"), password=password, timeout=PATIENCE)
    await backend.awaited().perform(claim(new_identity(), new_fence()))
    await backend.aclose()
    assert asked
    assert threading.get_ident() not in asked


def test_a_token_that_ended_on_its_way_is_asked_for_once_more(
    used: InColour, place: Place, tokens: Tokens
) -> None:
    backend = used.open(place.url("token"), password=tokens.ended)
    assert isinstance(used.claim(backend), Claimed)
    assert tokens.given == ["secret-1", "secret-2"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_under_load_no_operation_fails_when_tokens_end(
    used: InColour, place: Place, tokens: Tokens, kind: str
) -> None:
    """Every operation has a connection of its own, and every other token ends on its way."""

    async def awaited() -> str:
        return tokens.ended()

    password: Password = tokens.ended if kind == "plain" else awaited
    options = {"password": password, "max_lifetime": 1e-6, "pool_size": 1}
    backend = used.open(place.url("token"), **options)
    with ThreadPoolExecutor(4) as clients:
        replies = list(clients.map(lambda _: used.claim(backend), range(40)))
    assert all(isinstance(reply, Claimed) for reply in replies)
    opened = backend.pool_statistics()["operations"].opened
    assert len(tokens.given) == 2 * opened
    assert opened > 1


def test_a_password_that_is_refused_again_is_an_outage_and_is_not_told(
    used: InColour, place: Place, tokens: Tokens
) -> None:
    asked = count()

    def wrong() -> str:
        next(asked)
        return "wrong-secret"

    with pytest.raises(StoreUnavailable, match="password authentication failed") as refused:
        used.claim(used.open(place.url("token"), password=wrong))
    assert (refused.value.applied, next(asked)) == (False, 2)
    assert "wrong-secret" not in str(refused.value)


def test_where_no_password_was_refused_it_is_asked_for_once(
    used: InColour, place: Place, tokens: Tokens
) -> None:
    nowhere = place.url("token").replace(f":{place.server.port}/", f":{free_port()}/")
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        used.claim(used.open(nowhere, password=tokens))
    assert len(tokens.given) == 1


def test_a_function_that_fails_is_an_outage_with_its_reason(used: InColour, place: Place) -> None:
    def broken() -> str:
        raise LookupError("no metadata service")

    with pytest.raises(StoreUnavailable, match="LookupError: no metadata service") as refused:
        used.claim(used.open(place.url("token"), password=broken))
    assert refused.value.applied is False
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(StoreUnavailable, match="it returned NoneType, not a text"):
        used.claim(used.open(place.url("token"), password=nothing))


def test_a_fixed_password_stands_in_the_url() -> None:
    fixed: Any = "secret"
    with pytest.raises(ConfigurationError, match="a fixed one stands in the URL"):
        PostgresBackend("postgresql://shop@db/shop", password=fixed)


async def test_migrations_and_doctors_have_the_password_too(place: Place, tokens: Tokens) -> None:
    """Also where a loop runs: an async function has another one."""
    backend = PostgresBackend(place.url("token"), password=tokens.awaited)
    assert backend.migrate() >= 1
    assert backend.examine() == ()


@pytest.mark.parametrize("listen_url", [False, True])
async def test_workers_listen_with_the_password(
    place: Place, tokens: Tokens, listen_url: bool
) -> None:
    backend = PostgresBackend(place.url("token"), password=tokens)
    listener = listener_for(backend, place.url("token") if listen_url else None)
    assert listener is not None
    heard: set[str] = set()
    listening = asyncio.create_task(listener.listen(heard.add))
    await auntil(lambda: heard == {*CHANNELS})
    listening.cancel()


# ── sessions that are set up ──────────────────────────────────────────────────────────────────────

WHO = "SELECT current_user::text, current_setting('search_path')"
CONFIGURE = "SET ROLE shop; SET search_path = ours, public"


def test_each_session_is_set_up_before_its_first_statement(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"), configure=CONFIGURE, max_lifetime=1e-6)
    for _ in range(2):
        assert used.in_transaction(backend, WHO) == ("shop", "ours, public")
    assert backend.pool_statistics()["transactions"].opened == 2


def test_a_session_that_a_handler_changed_is_set_up_again(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"), configure=CONFIGURE, pool_size=1)
    used.in_transaction(backend, "RESET ROLE", "SET search_path = theirs")
    assert used.in_transaction(backend, WHO) == ("shop", "ours, public")
    assert backend.pool_statistics()["transactions"].opened == 1


def test_tables_are_made_and_found_where_the_session_says(
    used: InColour, server: PostgresServer
) -> None:
    with server.database() as url:
        place = Place(server, url)
        place.ask("CREATE SCHEMA ours")
        backend = used.open(f"{place.url('postgres')}&configure=SET%20search_path%20%3D%20ours")
        backend.migrate()
        assert isinstance(used.claim(backend), Claimed)
        assert backend.examine() == ()
        assert place.ask("SELECT count(*) FROM ours.semel_record") == 1


def test_a_session_that_cannot_be_set_up_is_not_used(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"), configure="SET ROLE nobody_there")
    said = 'configure= failed: role "nobody_there" does not exist'
    with pytest.raises(StoreUnavailable, match=said) as refused:
        used.claim(backend)
    assert refused.value.applied is False
    with pytest.raises(StoreUnavailable, match=said):
        backend.migrate()
    until(lambda: not place.sessions())


def test_a_session_that_would_lose_keys_is_refused_however_it_came_to_it(
    used: InColour, place: Place
) -> None:
    backend = used.open(place.url("postgres"), configure="SET synchronous_commit = off")
    with pytest.raises(StoreUnavailable, match="synchronous_commit is off"):
        used.claim(backend)


def test_sessions_of_a_pooler_are_not_set_up(
    used: InColour, pgbouncer_url: str, postgres_url: str
) -> None:
    """Its other clients would get them next."""
    PostgresBackend(pgbouncer_url).migrate()
    backend = used.open(pgbouncer_url, configure="SET search_path = ours")
    with pytest.raises(StoreUnavailable, match="a pooler is in between"):
        used.claim(backend)
    with pytest.raises(StoreUnavailable, match="a pooler is in between"):
        backend.migrate()
    bare = used.open(pgbouncer_url)
    assert used.in_transaction(bare, WHO)[1] != "ours"


# ── how long connections last ─────────────────────────────────────────────────────────────────────


def test_a_connection_past_its_time_is_replaced_when_it_comes_back(
    used: InColour, place: Place
) -> None:
    backend = used.open(place.url("postgres"), max_lifetime=1e-6)
    for number in range(1, 4):
        assert isinstance(used.claim(backend), Claimed)
        used.in_transaction(backend, WHO)
        ended = PoolStatistics(0, 0, 0, number, number)
        assert backend.pool_statistics()["operations"] == ended
        until(partial(_are, backend, "transactions", ended))
    until(lambda: not place.sessions())


def _are(backend: PostgresBackend, pool: str, expected: PoolStatistics) -> bool:
    return backend.pool_statistics()[pool] == expected


def test_connections_of_one_moment_do_not_end_in_one_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooled, "monotonic", lambda: 1000.0)
    connections, made = OpenConnections(600.0), [PooledConnection() for _ in range(50)]
    for each in made:
        each.join(connections)
    ends = {each.expires_at for each in made}
    assert len(ends) > 40
    assert 1540 <= min(ends) < max(ends) <= 1600


def test_connections_that_nobody_needs_are_closed(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"), max_idle=0.001)
    with ExitStack() as held:
        for _ in range(3):
            held.callback(_transaction(used, backend))

    def is_empty() -> bool:
        backend.trim_pools()  # as maintenance does; loops have a timer
        return not place.sessions()

    until(is_empty)
    statistics = backend.pool_statistics()["transactions"]
    assert (statistics.size, statistics.in_use, statistics.opened) == (0, 0, 3)
    assert isinstance(used.claim(backend), Claimed)


def test_connections_that_are_used_now_and_then_are_kept(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"))
    for _ in range(5):
        assert isinstance(used.claim(backend), Claimed)
        backend.trim_pools()
    assert backend.pool_statistics()["operations"] == PoolStatistics(1, 0, 0, 1, 0)


def test_threads_close_what_is_idle_when_they_come_back(place: Place) -> None:
    """Without maintenance: whoever uses the pool looks."""
    backend = PostgresBackend(place.url("postgres"), max_idle=0.001, timeout=PATIENCE)
    with ThreadPoolExecutor(2) as threads:
        both = threading.Barrier(2)

        def hold(_: int) -> None:
            transaction: Any = backend.begin(None)
            both.wait(PATIENCE)
            transaction.roll_back()

        list(threads.map(hold, range(2)))

    def one_is_left() -> bool:
        transaction: Any = backend.begin(None)
        transaction.roll_back()
        return backend.pool_statistics()["transactions"].size <= 1

    until(one_is_left)
    backend.close()


def _transaction(used: InColour, backend: PostgresBackend) -> Callable[[], None]:
    """Begun; what is returned ends it."""
    if used._portal is None:
        blocking: Any = backend.begin(None)
        end: Callable[[], None] = blocking.roll_back
        return end
    awaited: Any = used._portal.call(backend.abegin(None))
    portal = used._portal
    return lambda: portal.call(awaited.roll_back())


# ── counted ───────────────────────────────────────────────────────────────────────────────────────


def test_what_is_open_in_use_and_waited_for_is_counted(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"), pool_size=1)
    end = _transaction(used, backend)

    def counted() -> PoolStatistics:
        return backend.pool_statistics()["transactions"]

    assert counted() == PoolStatistics(1, 1, 0, 1, 0)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(_transaction, used, backend)
        until(lambda: counted().waiting == 1)
        end()
        waiting.result(PATIENCE)()
    assert counted() == PoolStatistics(1, 0, 0, 1, 0)


def test_a_connection_that_is_lost_is_counted_out(used: InColour, place: Place) -> None:
    backend = used.open(place.url("postgres"))
    assert isinstance(used.claim(backend), Claimed)
    place.ask(
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE application_name = 'under_test'"
    )
    assert isinstance(used.claim(backend), Claimed)
    assert backend.pool_statistics()["operations"] == PoolStatistics(1, 0, 0, 2, 1)


def test_whoever_listens_is_told_of_connections_when_health_is_asked_for(
    used: InColour, place: Place
) -> None:
    told: list[Event] = []

    def listen(event: Event) -> None:
        if event.name == "pool":
            told.append(event)

    vars(listen)["inline"] = True
    backend = used.open(place.url("postgres"))
    guard = semel.Guard(backend, tenant=None, on_event=listen, maintenance=None)
    for _ in range(2):
        assert guard.health().up
    operations = [event.fields for event in told if event["pool"] == "operations"]
    numbers = {"pool": "operations", "size": 1, "in_use": 0, "waiting": 0, "closed": 0}
    assert operations == [{**numbers, "opened": 1}, {**numbers, "opened": 0}]
    guard.close()


def test_the_doctor_warns_when_the_server_is_nearly_out_of_connections(place: Place) -> None:
    def advice() -> str:
        return run("doctor", place.url("postgres")).stdout

    assert "connections are in use" not in advice()
    with ExitStack() as stack:
        for _ in range(54):
            stack.enter_context(psycopg.connect(place.admin))
        assert "of the server's 57 connections are in use: lower pool_size" in advice()


# ── a campaign ────────────────────────────────────────────────────────────────────────────────────

LIFE = 10.0
"""Seconds that a token lives."""
AT_LEAST = {"tokens": 6, "connections": 100, "operations": 1_000}


class EndingTokens(Tokens):
    """Each is good for ten seconds, and a new one is made for whoever asks in the last second."""

    def __init__(self, place: Place) -> None:
        self._ends = 0.0
        super().__init__(place)

    def renew(self) -> None:
        super().renew()
        until_then = f"VALID UNTIL ' || quote_literal(now() + interval '{LIFE} seconds')"
        self._place.ask(f"DO $$ BEGIN EXECUTE 'ALTER ROLE token {until_then}; END $$")
        self._ends = time.monotonic() + LIFE

    def fresh(self) -> str:
        if self._ends - time.monotonic() < 1.0:
            self.renew()
        return self()


@pytest.mark.proof
def test_tokens_that_end_every_ten_seconds_fail_no_request(
    used: InColour, place: Place, request: pytest.FixtureRequest
) -> None:
    tokens, done, failed = EndingTokens(place), list[None](), list[BaseException]()
    options = {"password": tokens.fresh, "max_lifetime": 0.5, "pool_size": 4, "timeout": 5.0}
    backend = used.open(place.url("token"), **options)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            try:
                assert isinstance(used.claim(backend), Claimed)
                done.append(None)
            except BaseException as error:
                failed.append(error)

    def figures() -> dict[str, int]:
        opened = backend.pool_statistics()["operations"].opened
        given = len({*tokens.given})
        return {"tokens": given, "connections": opened, "operations": len(done)}

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(load) for _ in range(8)]
        try:
            for _ in rounds(6, lambda: missing(figures(), AT_LEAST)):
                time.sleep(LIFE)
        finally:
            stop.set()
        for each in running:
            each.result(PATIENCE)
    counted = ", ".join(f"{number:,} {name}" for name, number in figures().items())
    note(request, f"tokens that end: {counted}, {len(failed)} failed", "proof")
    assert failed == []
