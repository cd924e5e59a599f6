"""What is true of the MySQL store alone; what all stores share is in the contract suite."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from time import monotonic, time
from typing import Any

import pymysql
import pytest

import semel
from semel.core.frozen import replace
from semel.core.operations.maintenance import Lead, Led, Reap, Retire, Retired, Sweep
from semel.core.operations.outbox import (
    BrowseEffects,
    EffectWritten,
    Enqueue,
    Noted,
    NoteEvent,
    Shelf,
    TakeEffects,
)
from semel.core.operations.requests import (
    Advance,
    Agree,
    Applied,
    Claim,
    Claimed,
    Complete,
    Fetch,
    Fetched,
    Found,
    Read,
    Register,
    Registered,
    Renew,
    StoreOperation,
)
from semel.core.records import Fence, Identity, Origin, State
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores.django.database import mysql_url
from semel.stores.mysql import MysqlBackend
from semel.stores.mysql import protocol as said
from semel.stores.mysql.backend import LOCK
from semel.stores.mysql.protocol import INSERTS, MANY
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.mysql.settings import parse as parse_url
from semel.stores.mysql.values import literal, rendered
from semel.stores.sql.dialect import dialect, query_sources
from semel.stores.sql.plans import Statement
from tests.forms import in_proof
from tests.servers import MariadbServer
from tests.stores.contract import MINUTE, SNAPSHOT
from tests.stores.harness import database_of
from tests.stores.relay import Relay
from tests.stores.together import DAY, SOON, claim, complete, hurried
from tests.terms import terms
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


def fence() -> Fence:
    return Fence(secrets.token_bytes(16))


@contextmanager
def opened(url: str, **options: Any) -> Iterator[MysqlBackend]:
    """With its schema, and with time enough."""
    backend = MysqlBackend(url, **{"timeout": PATIENCE} | options)
    backend.migrate()
    try:
        yield backend
    finally:
        backend.close()


@asynccontextmanager
async def aopened(url: str, **options: Any) -> AsyncIterator[MysqlBackend]:
    backend = MysqlBackend(url, **{"timeout": PATIENCE} | options)
    await asyncio.to_thread(backend.migrate)
    try:
        yield backend
    finally:
        await backend.aclose()


Ask = Callable[[str], Any]


@contextmanager
def admin(server: MariadbServer, url: str) -> Iterator[Ask]:
    """Ask the database directly: the first column of the first row."""
    with server.connect(database_of(url)) as connection:

        def ask(statement: str) -> Any:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                row = cursor.fetchone()
            return row[0] if row else None

        yield ask


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def lone_server(mariadb: MariadbServer, authority: Path) -> Iterator[MariadbServer]:
    """With all that cannot be set later: a binary log, and a certificate."""
    settings = {"log-bin": "log", "server-id": "1", "sync-binlog": "1", "binlog-format": "ROW"}
    settings |= {"ssl-cert": f"{authority}.pem", "ssl-key": f"{authority}.key"}
    with MariadbServer(settings=settings) as server:
        yield server


@pytest.fixture
def own_server(lone_server: MariadbServer) -> MariadbServer:
    """A server that the test may stop, kill and freeze, and has to leave running; with a database
    of ours."""
    lone_server.execute("DROP DATABASE IF EXISTS shop")
    lone_server.execute("CREATE DATABASE shop")
    return lone_server


@contextmanager
def set_globally(server: MariadbServer, settings: dict[str, str]) -> Iterator[None]:
    """For connections that are opened in the meantime."""
    before = {name: server.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in settings}
    for name, value in settings.items():
        server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for name, value in before.items():
            server.execute(f"SET GLOBAL {name} = {value!r}")


@contextmanager
def frozen(server: MariadbServer) -> Iterator[None]:
    """SIGSTOP: sockets stay open, nobody answers."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        until(lambda: threads_of(server) == {"T"})  # a busy one takes a moment to stop
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def threads_of(server: MariadbServer) -> set[str]:
    """The states they are in."""
    stats = [path.read_text() for path in Path(f"/proc/{server.pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@contextmanager
def row_locked(server: MariadbServer, url: str, identity: Identity) -> Iterator[None]:
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        found = f"SELECT 1 FROM semel_record WHERE identity = x'{identity.hex()}' FOR UPDATE"
        assert cursor.execute(found) == 1
        yield
        cursor.execute("ROLLBACK")


def is_query(message: bytes) -> bool:
    """The first packet of an exchange, and the command for SQL text."""
    return message[3:5] == b"\x00\x03"


def is_write(message: bytes) -> bool:
    return is_query(message) and (b"INSERT" in message or b"UPDATE" in message)


def queries(relay: Relay) -> int:
    return sum(map(is_query, relay.messages))


# ── URLs and settings ─────────────────────────────────────────────────────────────────────────────

SECRET = "s3cr3t%2Fwith%40signs"


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_a_password_is_in_no_repr_no_url_and_no_error(scheme: str) -> None:
    backend = MysqlBackend(f"{scheme}://ann:{SECRET}@127.0.0.1:1/shop", timeout=SOON)
    with pytest.raises(StoreUnavailable) as performed:
        backend.blocking().perform(claim())
    with pytest.raises(StoreUnavailable) as migrated:
        backend.migrate()
    for text in (backend.url, repr(backend), repr(vars(backend)), performed, migrated):
        assert "s3cr3t" not in str(text)
    assert backend.url == f"{scheme}://ann@127.0.0.1:1/shop"
    assert performed.value.applied is False


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://ann:{SECRET}@h/shop?pool_sze=3",
        f"mysql://ann:{SECRET}@h/shop?pool_size=none",
        f"mysql://ann:{SECRET}@h/shop?pool_size=0",
        f"mysql://ann:{SECRET}@h/shop?timeout=-1",
        f"mysql://ann:{SECRET}@h/shop?timeout=soon",
        f"mysql://ann:{SECRET}@h/shop?durable=perhaps",
        f"mysql://ann:{SECRET}@h/shop?ssl_ca=/there/is/none",
        f"mysql://ann:{SECRET}@h:port/shop",
        f"mysql://ann:{SECRET}@h",
        f"mysql://ann:{SECRET}@h/shop/floor",
        f"postgresql://ann:{SECRET}@h/shop",
    ],
)
def test_a_wrong_url_is_a_configuration_error_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MysqlBackend(url)
    assert "s3cr3t" not in str(refused.value)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'pool_sze'.*pool_size"):
        MysqlBackend("mysql://h/shop?pool_sze=3")


def test_making_a_backend_does_no_io() -> None:
    backend = MysqlBackend("mysql://nowhere.invalid/shop", timeout=timedelta(seconds=1))
    backend.blocking()
    backend.close()


def test_a_user_with_a_password_gets_in_over_tcp(mariadb: MariadbServer, mariadb_url: str) -> None:
    name = database_of(mariadb_url)
    mariadb.execute("CREATE USER ann IDENTIFIED BY 'it''s/a@secret'")
    try:
        mariadb.execute(f"GRANT ALL ON {name}.* TO ann")
        url = f"mysql://ann:it%27s%2Fa%40secret@127.0.0.1:{mariadb.port}/{name}"
        with opened(url) as backend:
            assert isinstance(backend.blocking().perform(claim()), Claimed)
            assert isinstance(asyncio.run(awaited_once(backend)), Claimed)
        wrong = MysqlBackend(url.replace("secret", "guess"))
        with pytest.raises(StoreUnavailable, match="denied") as denied:
            wrong.blocking().perform(claim())
        assert denied.value.applied is False
    finally:
        mariadb.execute("DROP USER ann")


def test_an_encrypted_connection_checks_whom_it_talks_to(
    own_server: MariadbServer, authority: Path, tmp_path: Path
) -> None:
    others = certificate(tmp_path / "others")
    with the_user_ann(own_server, "REQUIRE SSL"):
        url = f"mysql://ann@127.0.0.1:{own_server.port}/shop"
        with opened(f"{url}?ssl_ca={authority}.pem") as backend:
            assert isinstance(backend.blocking().perform(claim()), Claimed)
            assert isinstance(asyncio.run(awaited_once(backend)), Claimed)
        for query in ("", "?ssl=on", f"?ssl_ca={others}.pem"):
            refused = MysqlBackend(url + query)
            with pytest.raises(StoreUnavailable):
                refused.blocking().perform(claim())
            with pytest.raises(StoreUnavailable):
                asyncio.run(awaited_once(refused))


def django_settings(**options: object) -> dict[str, object]:
    """Those of an alias as Django completes them."""
    return {"NAME": "", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": options}


@pytest.mark.parametrize(
    ("mode", "trusted", "named"),
    [
        ("REQUIRED", False, False),
        ("VERIFY_CA", True, False),
        ("VERIFY_IDENTITY", True, True),
    ],
)
def test_django_s_ssl_mode_holds_for_semel(
    own_server: MariadbServer,
    authority: Path,
    tmp_path: Path,
    mode: str,
    trusted: bool,
    named: bool,
) -> None:
    """It encrypts, and checks as much of the certificate as the mode demands."""
    others = certificate(tmp_path / "others")

    def claims(host: str, **options: object) -> object:
        where = {"USER": "ann", "HOST": host, "PORT": own_server.port, "NAME": "shop"}
        url = mysql_url({**django_settings(ssl_mode=mode, **options), **where})
        with closing(MysqlBackend(url, migrate=True)) as backend:
            return backend.blocking().perform(claim())

    with the_user_ann(own_server, "REQUIRE SSL"):
        ours, theirs = {"ca": f"{authority}.pem"}, {"ca": f"{others}.pem"}
        assert isinstance(claims("127.0.0.1", ssl=ours), Claimed)
        if trusted:
            with pytest.raises(StoreUnavailable):
                claims("127.0.0.1", ssl=theirs)
        else:
            assert isinstance(claims("127.0.0.1"), Claimed)
        if named:
            with pytest.raises(StoreUnavailable):
                claims("localhost", ssl=ours)
        else:
            assert isinstance(claims("localhost", ssl=ours), Claimed)


def test_django_s_option_file_holds_for_semel(own_server: MariadbServer, tmp_path: Path) -> None:
    """Settings win over the file, OPTIONS over settings; nobody is asked as somebody else."""
    file = tmp_path / "my.cnf"
    file.write_text(
        f"[client]\nuser = nobody\npassword = 'p#ss w/rd%'\nport = {own_server.port}\n"
        "host = 127.0.0.1\ndatabase = shop\n[shop]\nuser = ann\n"
    )
    own_server.execute("CREATE USER ann IDENTIFIED BY 'p#ss w/rd%'")
    try:
        own_server.execute("GRANT ALL ON shop.* TO ann")
        options = {"read_default_file": str(file), "read_default_group": "shop"}
        url = mysql_url(django_settings(**options))
        with closing(MysqlBackend(url, migrate=True)) as backend:
            assert isinstance(backend.blocking().perform(claim()), Claimed)
    finally:
        own_server.execute("DROP USER ann")
    told = parse({**django_settings(**options, user="bob"), "NAME": "other", "USER": "carol"})
    assert (told.user, told.database, told.port) == ("bob", "other", own_server.port)


def test_what_django_says_of_encryption_is_done_or_refused(tmp_path: Path) -> None:
    def tls(**options: object) -> ssl.SSLContext | None:
        return parse({**django_settings(**options), "NAME": "shop"}).tls

    for options in ({}, {"ssl_mode": "DISABLED"}, {"ssl_mode": "preferred"}):
        assert tls(**options) is None
    required = tls(ssl_mode="required")
    assert required is not None
    assert required.verify_mode is ssl.CERT_NONE
    strict = tls(ssl_mode="VERIFY_IDENTITY")
    assert strict is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    for wrong in ({"ssl_mode": "SOMEWHAT"}, {"read_default_file": str(tmp_path / "none.cnf")}):
        with pytest.raises(ConfigurationError):
            tls(**wrong)


def parse(settings: dict[str, object]) -> MysqlSettings:
    return parse_url(mysql_url(settings), {})


@contextmanager
def the_user_ann(server: MariadbServer, how: str = "") -> Iterator[None]:
    """Who has no rights beyond the database."""
    server.execute(f"CREATE USER ann {how}")
    try:
        server.execute("GRANT ALL ON shop.* TO ann")
        yield
    finally:
        server.execute("DROP USER ann")


def certificate(path: Path) -> Path:
    """Of an authority that has signed nothing but itself."""
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    made += " -subj /CN=semel"
    made += f" -addext subjectAltName=IP:127.0.0.1 -keyout {path}.key -out {path}.pem"
    subprocess.run(made.split(), check=True, capture_output=True)
    return path


def test_a_server_that_does_not_encrypt_is_refused_where_that_was_asked_for(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    with opened(mariadb_url):
        tcp = mariadb.tcp_url(database_of(mariadb_url))
        backend = MysqlBackend(f"{tcp}?ssl=on")
        with pytest.raises(StoreUnavailable):
            backend.blocking().perform(claim())
        with pytest.raises(StoreUnavailable):
            asyncio.run(awaited_once(backend))
        with opened(tcp) as plain:
            assert isinstance(plain.blocking().perform(claim()), Claimed)


async def awaited_once(backend: MysqlBackend) -> object:
    try:
        return await backend.awaited().perform(claim())
    finally:
        await backend.aclose()


@pytest.mark.parametrize("options", [{"mode": "atomic"}, {"mode": "resumable"}])
def test_transactions_of_handlers_are_refused_when_the_guard_is_made(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="mysql://h/shop has no transactions"):
        semel.Guard("mysql://h/shop", tenant=None, policy=semel.ietf(**options))


def test_a_deliverer_of_effects_is_refused_where_nothing_could_write_one() -> None:
    guard = semel.Guard("mysql://h/shop", tenant=None)
    with pytest.raises(ConfigurationError, match="mysql://h/shop has no outbox that"):
        guard.delivers("mail")
    with pytest.raises(ConfigurationError, match="mysql://h/shop has no transactions"):
        guard.enqueue(None, "mail", {})


# ── values as SQL ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (7, "7"),
        (-7, "-7"),
        (True, "1"),
        (b"", "x''"),
        (b"'\\\0", "x'275c00'"),
        ("é'", "_utf8mb4 x'c3a927'"),
        (["a", "b"], "_utf8mb4 x'61', _utf8mb4 x'62'"),
        ([], "NULL"),
        ([(b"a",), (b"b",)], "x'61', x'62'"),
        ([("a", 1)], "(_utf8mb4 x'61', 1)"),
    ],
)
def test_a_value_is_written_as_digits(value: object, text: str) -> None:
    assert literal(value) == text


def test_what_is_not_a_value_is_refused() -> None:
    with pytest.raises(TypeError):
        literal(1.5)


def test_only_placeholders_are_filled_in() -> None:
    assert rendered("SELECT :a, '12:b', @x := :b", {"a": 1, "b": 2}) == "SELECT 1, '12:b', @x := 2"


@pytest.mark.parametrize("size", [0, 1, 1024, 1025, 100_000])
def test_every_byte_comes_back(mariadb_url: str, size: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    with opened(mariadb_url) as backend:
        store, op = backend.blocking(), claim()
        store.perform(op)
        store.perform(complete(op, body))
        assert store.perform(Fetch(op.identity, op.fence, b"")) == Fetched(body)


# ── what is the same, and what is not ─────────────────────────────────────────────────────────────

ALIKE = ["abc", "ABC", "abc ", "abc  ", "äbc", "ábc"]
"""One and the same to the collations that servers come with."""


@pytest.fixture
def store(mariadb_url: str) -> Iterator[Callable[[StoreOperation[Any]], Any]]:
    with opened(mariadb_url) as backend:
        yield backend.blocking().perform


def test_names_that_look_alike_are_names_of_their_own(
    store: Callable[[StoreOperation[Any]], Any],
) -> None:
    for name in ALIKE:
        kept = store(Enqueue(name, None, name, b"payload", order=name))
        assert isinstance(kept, EffectWritten)
        assert kept.applied
        noted = store(NoteEvent(name, "event", DAY))
        assert isinstance(noted, Noted)
        assert not noted.before
        led = store(Lead(name, fence(), DAY))
        assert isinstance(led, Led)
        assert led.leading
        assert isinstance(store(Register(name, f"recipe of {name}")), Registered)
    browsed = store(BrowseEffects(Shelf.WAITING, 99))
    assert sorted(effect.key for effect in browsed.effects) == sorted(ALIKE)
    for name in ALIKE:
        assert store(NoteEvent(name, "event", None)).before
        taken = store(TakeEffects(fence(), (name,), 99, MINUTE))
        assert [(effect.key, effect.name) for effect in taken.effects] == [(name, name)]


def test_what_one_tenant_retires_is_no_other_tenants(
    store: Callable[[StoreOperation[Any]], Any],
) -> None:
    store(Agree(given := terms()))
    ops = [
        replace(claim(), origin=Origin(name, "POST", "/", "key"), terms=given.id) for name in ALIKE
    ]
    for op in ops:
        store(op)
        store(complete(op, resource="ride"))
    for op in ops:
        assert retired(store, "ride", op.origin.tenant) == 1
        assert retired(store, "RIDE", op.origin.tenant) == 0


def retired(store: Callable[[StoreOperation[Any]], Any], resource: str, tenant: str) -> int:
    reply = store(Retire(resource, tenant))
    assert isinstance(reply, Retired)
    return reply.count


def test_recipes_that_look_alike_are_recipes_of_their_own(
    store: Callable[[StoreOperation[Any]], Any],
) -> None:
    assert isinstance(store(Register("route", "abc")), Registered)
    assert not isinstance(store(Register("route", "ABC")), Registered)
    assert not isinstance(store(Register("route", "abc ")), Registered)
    assert not isinstance(store(Register("route", "def", previous="abc ", alive=DAY)), Registered)
    assert isinstance(store(Register("route", "def", previous="abc", alive=DAY)), Registered)


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def explained(ask: Any, name: str, part: int, params: dict[str, object]) -> list[tuple[Any, ...]]:
    """table, type and key of the plan of one part of a query."""
    text = rendered(dialect("mysql").queries[name].parts[part], params)
    with ask.cursor() as cursor:
        cursor.execute(f"EXPLAIN {text}")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [(row["table"], row["type"], row["key"]) for row in rows if row["table"]]


IDENTITY = sha256(b"7").digest()
"""Of a row that is there: for others the planner knows the answer."""
PICKED = [(sha256(str(n).encode()).digest(),) for n in range(50)]


KNOWN = {"all": 0, "application": "shop", "names": ["POST /payments"]}
MAIL = {"names": ["mail"], "application": ""}
RETIRED = {"resource": "ride", "tenant": "acme", "application": ""}


@pytest.mark.parametrize(
    ("name", "part", "params", "key"),
    [
        ("claim", 2, {"identity": IDENTITY}, "PRIMARY"),
        ("read", 0, {"identity": IDENTITY}, "PRIMARY"),
        (
            "complete",
            0,
            dict.fromkeys(("fence", "snapshot"), b"")
            | {"identity": IDENTITY, "retention": 1, "tombstone": 1, "resource": None},
            "PRIMARY",
        ),
        ("renew", 0, {"identity": IDENTITY, "fence": b"", "lease": 1}, "PRIMARY"),
        ("forget", 1, {"identity": IDENTITY, "seen": b""}, "PRIMARY"),
        ("sweep", 0, {"limit": 50}, "semel_record_due"),
        ("sweep", 1, {"picked": PICKED}, "PRIMARY"),
        ("sweep", 2, {"picked": PICKED}, "PRIMARY"),
        ("put_off", 0, {"limit": 50}, "semel_record_due"),
        ("expire", 0, {"limit": 50}, "semel_record_due"),
        ("purge", 0, {"limit": 50}, "semel_record_due"),
        ("purge", 2, {"picked": PICKED}, "PRIMARY"),
        ("due", 0, {"duty": "run", "limit": 50, **KNOWN}, "semel_record_due"),
        ("retire", 0, RETIRED, "semel_record_resource"),
        ("take_effects", 0, {**MAIL, "limit": 50}, "semel_effect_due"),
        (
            "deliver",
            0,
            {"key": "key 7", "fence": b"", "provider_id": None, "retention": 1},
            "key",
        ),
        ("read_effect", 0, {"key": "key 7"}, "key"),
        ("renew_effects", 0, {"fence": b"", "lease": 1}, "semel_effect_due"),
        ("purge_events", 0, {"limit": 50}, "semel_event_forget"),
        ("purge_events", 2, {"picked": [("s", "event 7"), ("s", "event 8")]}, "PRIMARY"),
        ("read_event", 0, {"source": "s", "event": "event 7"}, "PRIMARY"),
    ],
)
def test_a_statement_finds_its_rows_by_an_index(
    filled: Any, name: str, part: int, params: dict[str, object], key: str
) -> None:
    plan = explained(filled, name, part, params)
    small = ("<", "semel_terms", "terms")  # a table in memory, or one that has a row for each route
    ours = [(kind, used) for table, kind, used in plan if not str(table).startswith(small)]
    assert ours
    assert all(used == key or used == "semel_effect_order" for _, used in ours), plan
    assert not {"ALL", "index"} & {kind for kind, _ in ours}, plan


@pytest.fixture(scope="module")
def filled(mariadb: MariadbServer) -> Iterator[Any]:
    """Enough rows for a planner to care."""
    with mariadb.database() as url, opened(url) as backend:
        now = backend.blocking().perform(Read(Identity(IDENTITY))).now
        with mariadb.connect(database_of(url)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, "
                "method, path, `key`, on_lapse, terms, created_at, leased_until, duty, due_at, "
                "resource, snapshot, expires_at) SELECT UNHEX(SHA2(seq, 256)), "
                "IF(seq % 2, 'completed', 'in_progress'), UNHEX(MD5(seq)), 'v1:', '', 'acme', "
                f"'POST', '/', 'key', 'unknown', 0, {now}, {now}, IF(seq % 2, 'expire', 'lease'), "
                f"{now} + CAST(seq AS SIGNED) * 1000000 - 2500000000, CONCAT('ride ', seq), "
                "IF(seq % 2, 'answer', NULL), "
                f"IF(seq % 2, {now}, NULL) FROM seq_1_to_5000"
            )
            cursor.execute(
                "INSERT INTO semel_effect (`key`, application, name, payload, state, created_at, "
                "due_at) SELECT CONCAT('key ', seq), '', 'mail', '', "
                "IF(seq % 20, 'delivered', 'waiting'), "
                f"{now}, {now} + CAST(seq AS SIGNED) * 1000000 - 2500000000 FROM seq_1_to_5000"
            )
            cursor.execute(
                "INSERT INTO semel_event SELECT 's', CONCAT('event ', seq), "
                f"{now} + CAST(seq AS SIGNED) * 1000000 - 100000000 FROM seq_1_to_5000"
            )
            cursor.execute("ANALYZE TABLE semel_record, semel_effect, semel_event")
            yield connection


COUNTED = (
    "SELECT GROUP_CONCAT(variable_value ORDER BY variable_name) "
    "FROM information_schema.global_status WHERE variable_name IN ('Handler_write', "
    "'Handler_update', 'Handler_delete', 'Created_tmp_disk_tables')"
)


def test_replay_busy_and_mismatch_write_nothing_and_lock_nothing(
    own_server: MariadbServer,
) -> None:
    url = own_server.url_of("shop")
    with opened(url) as backend, admin(own_server, url) as ask:
        store = backend.blocking()
        done, busy = claim(), claim()
        for op in (done, busy):
            assert isinstance(store.perform(op), Claimed)
        store.perform(complete(done))
        rivals = [
            replace(done, fence=fence()),
            replace(busy, fence=fence()),
            replace(busy, fence=fence(), fingerprint="v1:bb"),
        ]
        with row_locked(own_server, url, done.identity), row_locked(own_server, url, busy.identity):
            before = ask(COUNTED)
            for op in rivals:
                assert isinstance(store.perform(op), Found)
            assert ask(COUNTED) == before
            store.perform(claim())
            assert ask(COUNTED) != before


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_a_request_asks_for_is_one_round_trip(
    mariadb: MariadbServer, mariadb_url: str, colour: str
) -> None:
    with Relay(mariadb.socket) as relay:
        url = f"mysql://root@127.0.0.1:{relay.port}/{database_of(mariadb_url)}"
        with opened(url, pool_size=1) as backend, asyncio.Runner() as runner:

            def trips(op: StoreOperation[Any]) -> int:
                before = queries(relay)
                if colour == "sync":
                    backend.blocking().perform(op)
                else:
                    runner.run(alone(backend, op))
                return queries(relay) - before

            op = claim()
            trips(claim())  # opens the connection
            assert trips(op) == 1
            assert trips(replace(op, fence=fence())) == 1
            assert trips(Renew(op.identity, op.fence, MINUTE)) == 1
            assert trips(complete(op)) == 1
            assert trips(replace(op, fence=fence())) == 1
            assert trips(Read(op.identity)) == 1
            runner.run(backend.aclose())


async def alone(backend: MysqlBackend, op: StoreOperation[Any]) -> object:
    return await backend.awaited().perform(op)


# ── schema ────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_schema_says_in_one_sentence_what_to_do(mariadb_url: str) -> None:
    backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
    with pytest.raises(SchemaError, match="run `semel migrate`") as refused:
        backend.blocking().perform(claim())
    assert "\n" not in str(refused.value)
    backend.migrate()
    assert isinstance(backend.blocking().perform(claim()), Claimed)
    backend.close()


def test_tables_dropped_later_say_the_same(mariadb: MariadbServer, mariadb_url: str) -> None:
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        backend.blocking().perform(claim())
        ask("DROP TABLE semel_record")
        with pytest.raises(SchemaError, match="run `semel migrate`"):
            backend.blocking().perform(claim())


def test_a_migration_that_was_cut_short_is_done_again(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """Data definition commits by itself: what a crash leaves is some of the tables."""
    statements = dialect("mysql").migrations[0].statements
    with mariadb.connect(database_of(mariadb_url)) as connection, connection.cursor() as cursor:
        for text in statements[:3]:
            cursor.execute(text)
    with opened(mariadb_url) as backend:
        assert isinstance(backend.blocking().perform(claim()), Claimed)
        assert backend.migrate() == len(dialect("mysql").migrations)


async def test_a_schema_from_the_future_is_refused(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with aopened(mariadb_url) as backend:
        with admin(mariadb, mariadb_url) as ask:
            ask("INSERT INTO semel_schema VALUES (999, 'later', 999, 0)")
        for perform in (
            lambda: backend.awaited().perform(claim()),
            lambda: asyncio.to_thread(backend.blocking().perform, claim()),
            lambda: asyncio.to_thread(backend.migrate),
        ):
            with pytest.raises(SchemaError, match=r"999.*upgrade semel"):
                await perform()


def test_eight_nodes_that_migrate_at_once_agree(mariadb: MariadbServer, mariadb_url: str) -> None:
    waiting = (
        "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' "
        f"AND db = '{database_of(mariadb_url)}'"
    )
    with ThreadPoolExecutor(8) as nodes, admin(mariadb, mariadb_url) as ask:
        assert ask(f"SELECT GET_LOCK({LOCK}, 0)") == 1
        versions = [
            nodes.submit(MysqlBackend(mariadb_url, timeout=PATIENCE).migrate) for _ in range(8)
        ]
        until(lambda: ask(waiting) == 8)
        ask(f"SELECT RELEASE_LOCK({LOCK})")
        assert {version.result() for version in versions} == {1}
        assert ask("SELECT count(*) FROM semel_schema") == 1


async def test_migrate_on_open_is_opt_in(mariadb_url: str) -> None:
    backend = MysqlBackend(f"{mariadb_url}&migrate=on", timeout=PATIENCE)
    replies = await asyncio.gather(*[backend.awaited().perform(claim()) for _ in range(20)])
    assert all(isinstance(reply, Claimed) for reply in replies)
    await backend.aclose()


def test_many_threads_may_open_and_migrate_at_once(mariadb_url: str) -> None:
    backend = MysqlBackend(mariadb_url, migrate=True, pool_size=8, timeout=PATIENCE)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: backend.blocking().perform(claim()), range(40)))
    assert all(isinstance(reply, Claimed) for reply in replies)
    backend.close()


# ── servers that are refused ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("innodb_flush_log_at_trx_commit", 2),
        ("innodb_flush_log_at_trx_commit", 0),
        ("sync_binlog", 0),
    ],
)
def test_a_server_that_may_forget_what_it_acknowledged_is_refused_unless_asked_for(
    own_server: MariadbServer, setting: str, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    url, named = own_server.url_of("shop"), f"{setting} is {value}"
    with set_globally(own_server, {setting: str(value)}):
        backend = MysqlBackend(url, timeout=PATIENCE)
        with pytest.raises(StoreUnavailable, match=named) as refused:
            backend.blocking().perform(claim())
        assert refused.value.applied is False
        with pytest.raises(StoreUnavailable, match=named):
            asyncio.run(awaited_once(backend))
        assert backend.capabilities.durable
        with (
            caplog.at_level(logging.WARNING, "semel"),
            opened(f"{url}&durable=off", pool_size=2) as careless,
        ):
            assert not careless.capabilities.durable
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(careless.blocking().perform, [claim() for _ in range(8)]))
            assert isinstance(careless.blocking().perform(claim()), Claimed)
        assert named in caplog.text


@pytest.mark.parametrize("setting", ["innodb_flush_log_at_trx_commit", "sync_binlog"])
async def test_a_server_that_begins_to_forget_is_refused_on_open_connections(
    own_server: MariadbServer, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.stores.mysql.protocol.CHECK_AGAIN", 0.0)
    async with aopened(own_server.url_of("shop")) as backend:
        blocking, awaited = backend.blocking(), backend.awaited()
        blocking.perform(claim())
        await awaited.perform(claim())
        with set_globally(own_server, {setting: "0"}):
            with pytest.raises(StoreUnavailable, match=f"{setting} is 0") as refused:
                blocking.perform(claim())
            assert refused.value.applied is False
            with pytest.raises(StoreUnavailable, match=f"{setting} is 0") as refused:
                await awaited.perform(claim())
            assert refused.value.applied is False
        blocking.perform(claim())
        await awaited.perform(claim())
        backend.close()


def test_a_log_of_statements_is_refused(own_server: MariadbServer) -> None:
    url = own_server.url_of("shop")
    refused = pytest.raises(ConfigurationError, match="binlog_format is STATEMENT")
    with set_globally(own_server, {"binlog_format": "STATEMENT"}), refused:
        MysqlBackend(url, timeout=PATIENCE).blocking().perform(claim())
    with opened(url) as backend:
        assert isinstance(backend.blocking().perform(claim()), Claimed)


async def test_a_server_made_read_only_is_an_outage_until_it_is_a_primary_again(
    own_server: MariadbServer,
) -> None:
    url = own_server.url_of("shop")
    with the_user_ann(own_server):
        async with aopened(url.replace("root@", "ann@")) as backend:
            await backend.awaited().perform(claim())
            with set_globally(own_server, {"read_only": "1"}):
                with pytest.raises(StoreUnavailable, match="read-only") as refused:
                    await backend.awaited().perform(claim())
                assert refused.value.applied is False
                almighty = MysqlBackend(url)  # whom the server would let write all the same
                with pytest.raises(StoreUnavailable, match=r"read-only.*primary"):
                    await almighty.awaited().perform(claim())
            assert isinstance(await backend.awaited().perform(claim()), Claimed)


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("10.6.0-MariaDB", True),
        ("10.11.18-MariaDB-0+deb12u1", True),
        ("11.4.2-MariaDB-log", True),
        ("10.5.9-MariaDB", False),
        ("8.0.16", True),
        ("8.0.15", False),
        ("9.1.0-commercial", True),
        ("5.7.44-log", False),
    ],
)
def test_a_server_that_is_too_old_is_refused(version: str, good: bool) -> None:
    if good:
        said._check_version(version)
        return
    with pytest.raises(ConfigurationError, match="or newer"):
        said._check_version(version)


def test_a_session_is_what_semel_needs_whatever_the_server_says(
    own_server: MariadbServer,
) -> None:
    settings = {
        "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        "time_zone": "'+05:30'",
        "character_set_server": "latin1",
        "collation_server": "latin1_swedish_ci",
        "tx_isolation": "'SERIALIZABLE'",
        "autocommit": "0",
    }
    with (
        set_globally(own_server, settings),
        own_server.database() as url,
        opened(url) as backend,
    ):
        store, op = backend.blocking(), replace(claim(), fingerprint="v1:Grüße ' \\ 🌊")
        claimed = store.perform(op)
        assert isinstance(claimed, Claimed)
        assert abs(claimed.now - time() * 1_000_000) < PATIENCE * 1_000_000
        found = store.perform(replace(op, fence=fence()))
        assert isinstance(found, Found)
        assert found.record.fingerprint == op.fingerprint


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("colour", ["async", *in_proof("sync")])
def test_a_big_snapshot_comes_back_whole(mariadb_url: str, colour: str) -> None:
    body = secrets.token_bytes(17_000_000)  # more than one packet of the protocol holds
    with opened(mariadb_url) as backend, asyncio.Runner() as runner:

        def perform(op: StoreOperation[Any]) -> Any:
            if colour == "sync":
                return backend.blocking().perform(op)
            return runner.run(alone(backend, op))

        op = claim()
        perform(op)
        assert isinstance(perform(complete(op, body)), Applied)
        assert perform(Fetch(op.identity, op.fence, b"")) == Fetched(body)
        runner.run(backend.aclose())


async def test_what_the_server_would_not_take_is_refused_before_it_is_sent(
    own_server: MariadbServer, caplog: pytest.LogCaptureFixture
) -> None:
    with set_globally(own_server, {"max_allowed_packet": "1048576"}):
        async with aopened(own_server.url_of("shop"), pool_size=1) as backend:
            op = claim()
            with caplog.at_level(logging.WARNING, "semel"):
                await backend.awaited().perform(op)
            assert "max_allowed_packet is 1048576" in caplog.text
            for perform in (
                backend.awaited().perform,
                lambda op: asyncio.to_thread(backend.blocking().perform, op),
            ):
                with pytest.raises(StoreUnavailable, match="max_allowed_packet") as refused:
                    await perform(complete(op, bytes(1_000_000)))
                assert refused.value.applied is False
                # And the connection is as good as before.
                assert isinstance(await perform(complete(op, bytes(700_000))), Applied)
            backend.close()


# ── outages ───────────────────────────────────────────────────────────────────────────────────────


def test_after_a_restart_of_the_server_the_next_operation_works(own_server: MariadbServer) -> None:
    with opened(own_server.url_of("shop"), pool_size=3) as backend:
        store = backend.blocking()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: store.perform(claim()), range(30)))
        own_server.restart()
        assert isinstance(store.perform(claim()), Claimed)


async def test_a_killed_server_is_an_outage_and_back_it_knows_what_it_acknowledged(
    own_server: MariadbServer,
) -> None:
    async with aopened(own_server.url_of("shop"), pool_size=3) as backend:
        store, ops = backend.awaited(), [claim() for _ in range(30)]
        await asyncio.gather(*map(store.perform, ops))
        await asyncio.to_thread(backend.blocking().perform, claim())
        await asyncio.to_thread(own_server.kill)
        for perform in (
            store.perform,
            lambda op: asyncio.to_thread(backend.blocking().perform, op),
        ):
            with pytest.raises(StoreUnavailable) as down:
                await perform(claim())
            assert down.value.applied is False
        await asyncio.to_thread(own_server.start)
        assert isinstance(await store.perform(claim()), Claimed)
        assert isinstance(await asyncio.to_thread(backend.blocking().perform, claim()), Claimed)
        for op in ops:
            assert isinstance(await store.perform(complete(op)), Applied)
        backend.close()


async def test_a_frozen_server_is_an_outage_in_time_and_heals(own_server: MariadbServer) -> None:
    async with aopened(own_server.url_of("shop"), pool_size=2) as backend:
        awaited, blocking = backend.awaited(), backend.blocking()
        assert isinstance(await awaited.perform(claim()), Claimed)
        assert isinstance(await asyncio.to_thread(blocking.perform, claim()), Claimed)
        batchers = backend.async_batcher(), backend.batcher()
        with frozen(own_server), hurried(*batchers):  # all end while it is still frozen
            tries: list[Any] = [awaited.perform(claim()) for _ in range(6)]
            tries += [asyncio.to_thread(blocking.perform, claim()) for _ in range(4)]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        assert isinstance(await awaited.perform(claim()), Claimed)
        assert isinstance(await asyncio.to_thread(blocking.perform, claim()), Claimed)
        await asyncio.to_thread(backend.close)


async def test_a_server_that_freezes_while_it_is_sent_a_body_is_an_outage_in_time(
    own_server: MariadbServer,
) -> None:
    async with aopened(own_server.url_of("shop")) as backend:
        op, body = claim(), bytes(4_000_000)  # more than a socket buffers
        await backend.awaited().perform(op)
        await asyncio.to_thread(backend.blocking().perform, claim())
        batchers = backend.async_batcher(), backend.batcher()
        with frozen(own_server), hurried(*batchers):
            outcomes = await asyncio.gather(
                backend.awaited().perform(complete(op, body)),
                asyncio.to_thread(backend.blocking().perform, complete(op, body)),
                return_exceptions=True,
            )
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        backend.close()


@pytest.mark.parametrize("port_is", ["silent", "refusing", "raving"])
def test_a_server_that_cannot_be_reached_is_an_outage_in_time(port_is: str) -> None:
    with socket.socket() as listener, ThreadPoolExecutor(1) as threads:
        listener.bind(("127.0.0.1", 0))
        if port_is != "refusing":
            listener.listen()  # connects, and then never says a word, or a wrong one
        if port_is == "raving":
            threads.submit(rave, listener)
        port = listener.getsockname()[1]
        backend = MysqlBackend(f"mysql://ann@127.0.0.1:{port}/shop", timeout=SOON)
        with pytest.raises(StoreUnavailable) as down:
            backend.blocking().perform(claim())
        with pytest.raises(StoreUnavailable) as down_too:
            asyncio.run(awaited_once(backend))
        assert down.value.applied is down_too.value.applied is False


def rave(listener: socket.socket) -> None:
    for _ in range(2):
        near, _ = listener.accept()
        near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        near.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_answers_that_drip_in_do_not_outlast_the_time_limit(
    mariadb: MariadbServer, mariadb_url: str, colour: str
) -> None:
    with Relay(mariadb.socket) as relay:
        url = f"mysql://root@127.0.0.1:{relay.port}/{database_of(mariadb_url)}"
        with opened(url) as backend, asyncio.Runner() as runner:

            def perform(op: StoreOperation[Any]) -> Any:
                if colour == "sync":
                    return backend.blocking().perform(op)
                return runner.run(alone(backend, op))

            async def async_batcher() -> Any:
                return backend.async_batcher()

            op = claim()
            perform(op)
            relay.drip = True  # which takes it many times as long
            batcher = backend.batcher() if colour == "sync" else runner.run(async_batcher())
            with hurried(batcher), pytest.raises(StoreUnavailable, match="time limit") as late:
                perform(Read(op.identity))
            assert late.value.applied is None
            relay.drip = False
            assert isinstance(perform(complete(op)), Applied)
            runner.run(backend.aclose())


async def test_a_locked_row_is_an_outage_in_time_and_hurts_no_other(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with aopened(mariadb_url, pool_size=2) as backend:
        store, op = backend.awaited(), claim()
        await store.perform(op)
        await asyncio.to_thread(backend.blocking().perform, claim())
        batchers = backend.async_batcher(), backend.batcher()
        with row_locked(mariadb, mariadb_url, op.identity):
            with hurried(*batchers), pytest.raises(StoreUnavailable) as blocked:
                await store.perform(complete(op))
            assert blocked.value.applied is None
            with hurried(*batchers), pytest.raises(StoreUnavailable):
                await asyncio.to_thread(backend.blocking().perform, complete(op))
            assert isinstance(await store.perform(claim()), Claimed)
        reply = await store.perform(complete(op))
        assert isinstance(reply, Applied)
        assert reply.state is State.COMPLETED
        backend.close()


def test_a_lock_that_is_not_given_up_in_time_is_surely_not_applied(
    mariadb: MariadbServer, mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives up before we do: after a second here, and we would wait much longer."""
    monkeypatch.setattr(said, "ceil", lambda _: 2)
    with opened(mariadb_url, pool_size=1) as backend:
        store, op = backend.blocking(), claim()
        store.perform(op)
        with row_locked(mariadb, mariadb_url, op.identity):
            with pytest.raises(StoreUnavailable, match="1205") as refused:
                store.perform(complete(op))
            assert refused.value.applied is False
        with admin(mariadb, mariadb_url) as ask:
            until(lambda: ask(OPEN) == 0)  # none was left behind with half of its work
        assert isinstance(store.perform(complete(op)), Applied)


OPEN = "SELECT SLEEP(0.15) + count(*) FROM information_schema.innodb_trx"
"""This table shows the same for as long as it is read more often than ten times a second."""
WAITING = f"{OPEN} WHERE trx_state = 'LOCK WAIT'"


def test_a_maintenance_round_passes_over_what_a_request_has_locked(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    with opened(mariadb_url) as backend:
        store, ops = backend.blocking(), [replace(claim(), lease=1) for _ in range(3)]
        for op in ops:
            store.perform(op)
        with row_locked(mariadb, mariadb_url, ops[1].identity):
            swept = store.perform(Sweep(10))
            assert sum(swept.counts.values()) == 2
            assert store.perform(Reap(10)).counts == {}
        assert sum(store.perform(Sweep(10)).counts.values()) == 1


def test_two_maintenance_rounds_at_once_share_the_work(mariadb_url: str) -> None:
    with opened(mariadb_url, pool_size=8) as backend:
        store = backend.blocking()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(store.perform, [replace(claim(), lease=1) for _ in range(400)]))
            rounds = list(threads.map(store.perform, [Sweep(40)] * 16))
        swept = [sum(each.counts.values()) for each in rounds]
        while left := sum(store.perform(Sweep(40)).counts.values()):
            swept.append(left)  # one may have passed over what another only looked at
        assert sum(swept) == 400
        assert max(swept) <= 40


def test_a_claim_whose_rival_was_just_not_visible_finds_it(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """It looks, sees nothing, and inserts: then the rival commits."""
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        first, op = claim(), claim()
        backend.blocking().perform(first)
        with mariadb.connect(database_of(mariadb_url)) as rival, rival.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute(
                f"UPDATE semel_record SET identity = x'{op.identity.hex()}' "
                f"WHERE identity = x'{first.identity.hex()}'"
            )
            with ThreadPoolExecutor(1) as threads:
                claiming = threads.submit(backend.blocking().perform, op)
                until(lambda: ask(WAITING) == 1)
                cursor.execute("COMMIT")
                found = claiming.result()
        assert isinstance(found, Found)
        assert found.record.fence == first.fence


def test_a_change_and_what_is_told_of_it_are_one_step(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """A gate keeps it between the two; nobody can change the record in the meantime."""
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        put_a_gate(ask)
        assert ask("SELECT GET_LOCK('gate', 0)") == 1
        with ThreadPoolExecutor(1) as threads:
            advancing = threads.submit(store.perform, Advance(op.identity, op.fence, b"journal"))
            until(lambda: ask(f"{KILL} AND state = 'User lock'") is not None)
            ask("SET SESSION innodb_lock_wait_timeout = 0")
            with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
                ask("UPDATE behind_the_gate SET fence = x'00'")
            ask("SELECT RELEASE_LOCK('gate')")
            assert isinstance(advancing.result(), Applied)


def put_a_gate(ask: Ask) -> None:
    """Before everybody who reads when a record expires."""
    names = ask(
        "SELECT GROUP_CONCAT('`', column_name, '`') FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name = 'semel_record'"
    )
    ask(
        "CREATE FUNCTION passed(value BIGINT) RETURNS BIGINT RETURN "
        "IF(GET_LOCK('gate', 3600) AND RELEASE_LOCK('gate'), value, NULL)"
    )
    ask("RENAME TABLE semel_record TO behind_the_gate")
    gated = names.replace("`expires_at`", "passed(expires_at) AS expires_at")
    ask(f"CREATE VIEW semel_record AS SELECT {gated} FROM behind_the_gate")


KILL = (
    "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = DATABASE()"
)


def test_a_connection_killed_half_way_is_survived_and_the_work_done_once(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    waiting = f"{KILL} AND state = 'Updating' AND info LIKE '%UPDATE semel_record%'"
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        with ThreadPoolExecutor(1) as threads:
            with row_locked(mariadb, mariadb_url, op.identity):
                completing = threads.submit(store.perform, complete(op))
                until(lambda: bool(ask(waiting)))
                first = ask(waiting)
                ask(f"KILL {first}")
                until(lambda: ask(waiting) not in (None, first))  # it came again
            assert isinstance(completing.result(), Applied)
        found = store.perform(Read(op.identity))
        assert isinstance(found, Found)
        assert found.record.snapshot == SNAPSHOT


def test_idle_connections_that_were_killed_are_not_used(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        store = backend.blocking()
        until(lambda: ask(KILL) is None)  # the migration's has ended
        for _ in range(2):
            assert isinstance(store.perform(claim()), Claimed)
            kill_idle(ask)


async def test_idle_connections_of_a_loop_that_were_killed_are_not_used(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with aopened(mariadb_url) as backend:
        store = backend.awaited()
        with admin(mariadb, mariadb_url) as ask:
            until(lambda: ask(KILL) is None)
            for _ in range(2):
                assert isinstance(await store.perform(claim()), Claimed)
                await asyncio.to_thread(kill_idle, ask)


def kill_idle(ask: Ask) -> None:
    ask(f"KILL {ask(KILL)}")
    until(lambda: ask(KILL) is None)


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", [Claim, Complete])
def test_a_lost_answer_is_asked_for_again_with_the_same_fence(
    mariadb: MariadbServer, mariadb_url: str, colour: str, kind: type
) -> None:
    with Relay(mariadb.socket) as relay:
        url = f"mysql://root@127.0.0.1:{relay.port}/{database_of(mariadb_url)}"
        with opened(url) as backend, asyncio.Runner() as runner:

            def perform(op: StoreOperation[Any]) -> Any:
                if colour == "sync":
                    return backend.blocking().perform(op)
                return runner.run(alone(backend, op))

            first, op = claim(), claim()
            perform(first)
            asked: StoreOperation[Any] = op if kind is Claim else complete(first)
            relay.drop = is_write
            reply = perform(asked)
            assert relay.dropped == 1
            assert isinstance(reply, Claimed if kind is Claim else Applied)
            with admin(mariadb, mariadb_url) as ask:
                assert ask("SELECT count(*) FROM semel_record") == (2 if kind is Claim else 1)
            runner.run(backend.aclose())


def test_a_deadlock_is_tried_again_with_the_same_fence(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """A stranger has a row, wants another, and is the heavier one: ours is the victim."""
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        ask("CREATE TABLE stranger (n INT PRIMARY KEY, m INT) ENGINE = InnoDB")
        ask("INSERT INTO stranger SELECT seq, 0 FROM seq_1_to_200")
        ask(
            "CREATE TRIGGER entangled BEFORE UPDATE ON semel_record FOR EACH ROW "
            "UPDATE stranger SET m = m + 1 WHERE n = 1"
        )
        before = deadlocks(ask)
        with mariadb.connect(database_of(mariadb_url)) as other, other.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute("UPDATE stranger SET m = 7")
            with ThreadPoolExecutor(1) as threads:
                completing = threads.submit(store.perform, complete(op))
                until(lambda: ask(WAITING) == 1)
                cursor.execute(
                    f"UPDATE semel_record SET tries = tries WHERE identity = x'{op.identity.hex()}'"
                )
                assert deadlocks(ask) == before + 1
                cursor.execute("ROLLBACK")
                assert isinstance(completing.result(), Applied)


def deadlocks(ask: Ask) -> int:
    text = "SELECT variable_value FROM information_schema.global_status "
    return int(ask(f"{text} WHERE variable_name = 'Innodb_deadlocks'"))


def test_more_than_the_pool_holds_is_an_outage_in_time_and_surely_not_applied(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    with (
        opened(mariadb_url, pool_size=1) as backend,
        admin(mariadb, mariadb_url) as ask,
    ):
        store, op = backend.blocking(), claim()
        store.perform(op)
        with ThreadPoolExecutor(1) as threads:
            with row_locked(mariadb, mariadb_url, op.identity):
                holding = threads.submit(store.perform, complete(op))
                until(lambda: ask(WAITING) == 1)
                with pytest.raises(StoreUnavailable, match="pool_size=1") as refused:
                    backend.batcher()._pool.perform(complete(op), monotonic() + SOON)
            assert refused.value.applied is False
            assert isinstance(holding.result(), Applied)


def test_a_record_that_breaks_the_rules_is_corruption(mariadb_url: str) -> None:
    with opened(mariadb_url) as backend:
        long = replace(claim(), identity=Identity(bytes(33)))
        with pytest.raises(StoreCorrupt) as refused:
            backend.blocking().perform(long)
        assert "a-key-of-the-client" not in str(refused.value)
        assert isinstance(backend.blocking().perform(claim()), Claimed)


# ── event loops, cancellation, threads, processes ─────────────────────────────────────────────────


async def test_cancelled_operations_leave_the_pool_whole(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with aopened(mariadb_url, pool_size=2) as backend:
        store = backend.awaited()
        await asyncio.gather(*[store.perform(claim()) for _ in range(4)])
        before = await asyncio.to_thread(mariadb.execute, CONNECTED)
        for turn in range(100):
            tasks = [asyncio.ensure_future(store.perform(claim())) for _ in range(4)]
            for _ in range(turn % 7):  # cancelled at a different point each time
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, Claimed}
        replies = await asyncio.gather(*[store.perform(claim()) for _ in range(20)])
        assert all(isinstance(reply, Claimed) for reply in replies)
        # Nobody hung up on the server: the only new connection is the one that asks for it.
        after = await asyncio.to_thread(mariadb.execute, CONNECTED)
        assert int(after[0][1]) == int(before[0][1]) + 1


CONNECTED = "SHOW GLOBAL STATUS LIKE 'Connections'"


async def test_cancelling_does_not_wait_for_a_server_that_does_not_answer(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with aopened(mariadb_url, pool_size=2) as backend:
        store, op = backend.awaited(), claim()
        await store.perform(op)
        with row_locked(mariadb, mariadb_url, op.identity), admin(mariadb, mariadb_url) as ask:
            completing = asyncio.ensure_future(store.perform(complete(op)))
            await asyncio.to_thread(until, lambda: ask(WAITING) == 1)
            completing.cancel()
            with pytest.raises(asyncio.CancelledError):  # while the row is locked
                await completing
            assert isinstance(await store.perform(claim()), Claimed)
        # The answer is still read by somebody: the connection comes back.
        replies = await asyncio.gather(*[store.perform(claim()) for _ in range(20)])
        assert all(isinstance(reply, Claimed) for reply in replies)


def test_each_event_loop_has_its_own_connections(mariadb: MariadbServer, mariadb_url: str) -> None:
    with opened(mariadb_url) as backend:
        store = backend.awaited()

        async def use() -> object:
            return await store.perform(claim())

        for _ in range(3):  # loops that end without closing what they opened
            assert isinstance(asyncio.run(use()), Claimed)
        assert isinstance(asyncio.run(awaited_once(backend)), Claimed)
        with admin(mariadb, mariadb_url) as ask:
            until(lambda: ask(KILL) is None)


def test_a_forked_child_opens_its_own_connections(mariadb: MariadbServer, mariadb_url: str) -> None:
    ours = f"SELECT GROUP_CONCAT(id) FROM ({KILL}) AS ours"
    with opened(mariadb_url) as backend, admin(mariadb, mariadb_url) as ask:
        store, mine, theirs = backend.blocking(), claim(), claim()
        store.perform(mine)
        until(lambda: "," not in ask(ours))  # that of the migration is gone
        before, inherited = ask(ours), backend.batcher()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                done = isinstance(store.perform(theirs), Claimed)
                done = done and backend.batcher() is not inherited
                backend.close()
                inherited.close()
                code = 0 if done else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        until(lambda: ask(ours) == before)  # the child's is gone, the parent's is the same
        assert isinstance(store.perform(complete(mine)), Applied)
        assert isinstance(store.perform(Read(theirs.identity)), Found)
        assert ask(ours) == before


RACE = """
import asyncio, os, sys
from semel.core.operations.requests import Claim, Claimed
from semel.core.records import Fence, Identity, Origin
from semel.stores.django.database import mysql_url
from semel.stores.mysql import MysqlBackend

url, colour, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
backend = MysqlBackend(url, timeout=120)
ops = [
    Claim(Identity(n.to_bytes(32)), Fence(os.urandom(16)), "v1:", b"", Origin("", "", "", ""), 9**9)
    for n in range(count)
]

async def race():
    return await asyncio.gather(*map(backend.awaited().perform, ops))

print("ready", flush=True)
sys.stdin.readline()
replies = asyncio.run(race()) if colour == "async" else map(backend.blocking().perform, ops)
print(*[int(isinstance(reply, Claimed)) for reply in replies])
"""


def test_of_processes_that_race_for_many_keys_each_key_has_one_winner(mariadb_url: str) -> None:
    count = 150
    with opened(mariadb_url):
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", RACE, mariadb_url, colour, str(count)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for colour in ("sync", "async", "sync")
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        won = [racer.communicate(timeout=PATIENCE)[0].split() for racer in racers]
    assert [sum(map(int, each)) for each in zip(*won, strict=True)] == [1] * count


def test_on_a_galera_node_no_transaction_is_one_packet() -> None:
    """Undone between two statements of a packet, it would end in a COMMIT that is acknowledged."""
    params = {"identity": bytes(32), "seen": bytes(16), "tries": 0, "again_in": None}
    steps = said.exchange(Statement("inquire", params), separately=True)
    told: list[list[Any]] = [[], [], [(["state"], [["unknown"]])]]
    texts = [next(steps), *(steps.send(results) for results in told)]
    assert (texts[0], texts[-1]) == (said.BEGIN, said.COMMIT)
    assert [text.split()[0] for text in texts[1:-1]] == ["UPDATE", "SELECT"]
    with pytest.raises(StopIteration) as done:
        steps.send([])
    assert done.value.value == [["unknown"]]
    together = next(said.exchange(Statement("inquire", params)))
    assert together == "; ".join(texts)


def test_every_insert_that_looks_first_expects_a_rival() -> None:
    """Between the look and the insert another may come: that is no error of the store's."""
    looks = {name for name, text in query_sources("mysql").items() if "@semel_found" in text}
    assert looks - MANY <= INSERTS
    assert "agree" in looks
