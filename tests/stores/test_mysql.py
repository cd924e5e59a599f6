"""What is true of the MySQL store alone; what all stores share is in the contract suite."""

import asyncio
import logging
import re
import secrets
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    closing,
    contextmanager,
)
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

import pymysql
import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.operations import Applied, Claim, Claimed, Found, NoRecord, Read, StoreOperation
from semel.core.records import Fence, Identity, Origin
from semel.errors import ConfigurationError, SchemaError, StoreUnavailable
from semel.stores.django.backend import mysql_url
from semel.stores.mysql import MysqlBackend, driver_internals
from semel.stores.mysql import protocol as said
from semel.stores.mysql.protocol import INSERTS, MANY
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.mysql.settings import parse as parse_url
from semel.stores.mysql.values import literal, rendered
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Statement
from semel.testing.contract.records import MINUTE
from semel.testing.contract.terms import terms
from tests.databases import connect, executed, numbers
from tests.servers import MariadbServer
from tests.stores.dialects import Ask, Mysql, SqlBackend
from tests.stores.harness import database_of
from tests.stores.relay import Relay
from tests.stores.together import DAY, claim, complete, hurried
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(mariadb: MariadbServer, mariadb_url: str) -> Mysql:
    return Mysql(mariadb, mariadb_url)


def opened(url: str, **options: Any) -> AbstractContextManager[SqlBackend]:
    return Mysql(None, url).opened(**options)


def aopened(url: str, **options: Any) -> AbstractAsyncContextManager[SqlBackend]:
    return Mysql(None, url).aopened(**options)


def fence() -> Fence:
    return Fence(secrets.token_bytes(16))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def lone_server(mariadb: MariadbServer, authority: Path) -> Iterator[MariadbServer]:
    """With all that cannot be set later: a binary log, and a certificate."""
    settings = {"log-bin": "log", "server-id": "1", "sync-binlog": "1", "binlog-format": "ROW"}
    settings |= {"ssl-cert": f"{authority}.pem", "ssl-key": f"{authority}.key"}
    settings |= {"ssl-ca": f"{authority}.pem"}  # that of its clients
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


def is_query(message: bytes) -> bool:
    """The first packet of an exchange, and the command for SQL text."""
    return message[3:5] == b"\x00\x03"


def is_write(message: bytes) -> bool:
    return is_query(message) and (b"INSERT" in message or b"UPDATE" in message)


@contextmanager
def relayed(
    database: Mysql, colour: str, **options: Any
) -> Iterator[tuple[Relay, Callable[[StoreOperation[Any]], Any], Any]]:
    """A store behind a relay: that, what performs an operation, and what batches them."""
    with Relay(database.server.socket) as relay:
        url = f"mysql://root@127.0.0.1:{relay.port}/{database_of(database.url)}"
        with opened(url, **options) as backend, asyncio.Runner() as runner:

            async def awaited(op: StoreOperation[Any]) -> Any:
                return await backend.awaited().perform(op)

            async def batcher() -> Any:
                return backend.async_batcher()

            if colour == "sync":
                yield relay, backend.blocking().perform, backend.batcher()
            else:
                yield relay, lambda op: runner.run(awaited(op)), runner.run(batcher())
            runner.run(backend.aclose())


def queries(relay: Relay) -> int:
    return sum(map(is_query, relay.messages))


# ── URLs and settings ─────────────────────────────────────────────────────────────────────────────


def test_a_user_with_a_password_gets_in_over_tcp(database: Mysql) -> None:
    mariadb, name = database.server, database_of(database.url)
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


def signed(authority: Path, path: Path) -> Path:
    """A client's certificate."""
    subject = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    subject += f" -subj /CN=ann -keyout {path}.key -out {path}.csr"
    sign = f"openssl x509 -req -in {path}.csr -CA {authority}.pem -CAkey {authority}.key"
    sign += f" -days 2 -set_serial 7 -out {path}.pem"
    for command in (subject, sign):
        subprocess.run(command.split(), check=True, capture_output=True)
    return path


def test_a_user_whose_certificate_is_demanded_shows_it(
    own_server: MariadbServer, authority: Path, tmp_path: Path
) -> None:
    mine = signed(authority, tmp_path / "mine")
    with the_user_ann(own_server, "REQUIRE X509"):
        url = f"mysql://ann@127.0.0.1:{own_server.port}/shop?ssl_ca={authority}.pem"
        with opened(f"{url}&ssl_cert={mine}.pem&ssl_key={mine}.key") as backend:
            assert isinstance(backend.blocking().perform(claim()), Claimed)
            assert isinstance(asyncio.run(awaited_once(backend)), Claimed)
        with pytest.raises(StoreUnavailable):
            MysqlBackend(url).blocking().perform(claim())


@pytest.mark.parametrize("severed", [False, True])
def test_a_transaction_is_encrypted_too(
    own_server: MariadbServer, authority: Path, severed: bool
) -> None:
    with the_user_ann(own_server, "REQUIRE SSL"):
        url = f"mysql://ann@127.0.0.1:{own_server.port}/shop?ssl_ca={authority}.pem"
        with opened(url) as backend:
            op = claim()
            act = backend.begin(op.identity)
            assert act is not None
            assert isinstance(act.perform(op), Claimed)
            with act.connection.cursor() as cursor:
                cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
                assert cursor.fetchone()[1]
            act.perform(complete(op))
            if severed:
                assert act.sever("it took too long")
                with pytest.raises(StoreUnavailable, match="it took too long"):
                    act.commit()
                until(lambda: backend.begin(op.identity)).roll_back()
            else:
                act.commit()
            act.roll_back()
            found = backend.blocking().perform(Read(op.identity))
            assert isinstance(found, NoRecord if severed else Found)


def test_an_option_file_of_the_url_s_is_read_and_the_url_wins(
    own_server: MariadbServer, authority: Path, tmp_path: Path
) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(
        f"[client]\nuser = nobody\npassword = 'p#ss w/rd%'\nport = {own_server.port}\n"
        f"host = 127.0.0.1\ndatabase = other\n[shop]\nuser = ann\n"
        f"ssl-ca = {authority}.pem\nssl-mode = VERIFY_IDENTITY\n"
    )
    url = f"mysql:///shop?read_default_file={file}&read_default_group=shop"
    own_server.execute("CREATE USER ann IDENTIFIED BY 'p#ss w/rd%' REQUIRE SSL")
    try:
        own_server.execute("GRANT ALL ON shop.* TO ann")
        with closing(MysqlBackend(url, migrate=True)) as backend:
            assert isinstance(backend.blocking().perform(claim()), Claimed)
            assert "p#ss" not in backend.url
            assert "p#ss" not in repr(parse_url(url, {}))
    finally:
        own_server.execute("DROP USER ann")
    told = parse_url(f"mysql://bob@elsewhere:7/shop?read_default_file={file}", {})
    assert (told.user, told.host, told.port, told.database) == ("bob", "elsewhere", 7, "shop")
    assert parse_url(f"mysql:///?read_default_file={file}", {}).database == "other"
    for wrong in ("port = many", "ssl-mode = SOMEWHAT"):
        file.write_text(f"[client]\n{wrong}\n")
        with pytest.raises(ConfigurationError):
            parse_url(url, {})


@pytest.mark.parametrize(
    ("driver", "names", "lacking"),
    [
        ("PyMySQL", driver_internals.PYMYSQL, "_execute_command"),
        ("asyncmy", driver_internals.ASYNCMY, "_stream_broken"),
    ],
)
def test_a_driver_that_lacks_what_is_used_of_it_is_refused_by_name_and_version(
    driver: str, names: tuple[str, ...], lacking: str
) -> None:
    class Connection:
        pass

    for name in names:
        if name != lacking:
            setattr(Connection, name, None)
    said = rf"{driver} \d.*Connection\.{lacking} is not there"
    with pytest.raises(ConfigurationError, match=said):
        driver_internals.check(driver, Connection(), names)


def test_every_private_name_of_the_drivers_that_is_used_is_checked() -> None:
    """Those of connections: `connection._name`, and `self._name` of what is derived from one."""
    checked = {*driver_internals.PYMYSQL, *driver_internals.ASYNCMY}
    folder = Path(driver_internals.__file__).parent
    used = {
        name
        for file in folder.glob("*.py")
        for name in re.findall(r"\b(?:connection|late|result\(\))\.(_[a-z]\w+)", file.read_text())
    }
    assert used - checked <= set()
    source = (folder / "handler_connections.py").read_text()
    own = {"_semel", "_turn", "_unfetched", "_statement", "_next_unread", "_count"}
    derived = set(re.findall(r"\bself\.(_[a-z]\w+)", source.partition("class AsyncMysql")[0]))
    assert derived - own <= checked


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
    database: Mysql,
) -> None:
    with database.opened():
        tcp = database.server.tcp_url(database_of(database.url))
        backend = MysqlBackend(f"{tcp}?ssl=on")
        with pytest.raises(StoreUnavailable):
            backend.blocking().perform(claim())
        with pytest.raises(StoreUnavailable):
            asyncio.run(awaited_once(backend))
        with opened(tcp) as plain:
            assert isinstance(plain.blocking().perform(claim()), Claimed)


async def awaited_once(backend: SqlBackend) -> object:
    try:
        return await backend.awaited().perform(claim())
    finally:
        await backend.aclose()


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
def test_every_byte_comes_back(database: Mysql, size: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    with database.opened() as backend:
        store, op = backend.blocking(), claim()
        store.perform(op)
        store.perform(complete(op, body))
        assert store.perform(ops.Fetch(op.identity, op.fence, b"")) == ops.Fetched(body)


# ── what is the same, and what is not ─────────────────────────────────────────────────────────────

ALIKE = ["abc", "ABC", "abc ", "abc  ", "äbc", "ábc"]
"""One and the same to the collations that servers come with."""


@pytest.fixture
def store(database: Mysql) -> Iterator[Callable[[StoreOperation[Any]], Any]]:
    with database.opened() as backend:
        yield backend.blocking().perform


def test_names_that_look_alike_are_names_of_their_own(
    store: Callable[[StoreOperation[Any]], Any],
) -> None:
    for name in ALIKE:
        kept = store(ops.Enqueue(name, None, name, b"payload", order=name))
        assert isinstance(kept, ops.EffectWritten)
        assert kept.applied
        noted = store(ops.NoteEvent(name, "event", DAY))
        assert isinstance(noted, ops.Noted)
        assert not noted.before
        led = store(ops.Lead(name, fence(), DAY))
        assert isinstance(led, ops.Led)
        assert led.leading
        assert isinstance(store(ops.Register(name, f"recipe of {name}")), ops.Registered)
    browsed = store(ops.BrowseEffects(ops.Shelf.WAITING, 99))
    assert sorted(effect.key for effect in browsed.effects) == sorted(ALIKE)
    for name in ALIKE:
        assert store(ops.NoteEvent(name, "event", None)).before
        taken = store(ops.TakeEffects(fence(), (name,), 99, MINUTE))
        assert [(effect.key, effect.name) for effect in taken.effects] == [(name, name)]


def test_what_one_tenant_retires_is_no_other_tenants(
    store: Callable[[StoreOperation[Any]], Any],
) -> None:
    store(ops.Agree(given := terms()))
    given_to = [
        replace(claim(), origin=Origin(name, "POST", "/", "key"), terms=given.id) for name in ALIKE
    ]
    for op in given_to:
        store(op)
        store(complete(op, resource="ride"))
    for op in given_to:
        assert retired(store, "ride", op.origin.tenant) == 1
        assert retired(store, "RIDE", op.origin.tenant) == 0


def retired(store: Callable[[StoreOperation[Any]], Any], resource: str, tenant: str) -> int:
    reply = store(ops.Retire(resource, tenant))
    assert isinstance(reply, ops.Retired)
    return reply.count


def test_recipes_that_look_alike_are_recipes_of_their_own(
    store: Callable[[StoreOperation[Any]], Any],
) -> None:
    assert isinstance(store(ops.Register("route", "abc")), ops.Registered)
    assert not isinstance(store(ops.Register("route", "ABC")), ops.Registered)
    assert not isinstance(store(ops.Register("route", "abc ")), ops.Registered)
    assert not isinstance(
        store(ops.Register("route", "def", previous="abc ", alive=DAY)), ops.Registered
    )
    assert isinstance(
        store(ops.Register("route", "def", previous="abc", alive=DAY)), ops.Registered
    )


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def explained(ask: Ask, name: str, part: int, params: dict[str, object]) -> list[tuple[Any, ...]]:
    """table, type and key of the plan of one part of a query."""
    text = rendered(dialect("mysql").queries[name].parts[part], params)
    return [row for row in ask.plan(text) if row[0]]


IDENTITY = sha256(b"7").digest()
"""Of a row that is there: for others the planner knows the answer."""
PICKED = [(sha256(str(n).encode()).digest(),) for n in range(50)]


KNOWN = {"all": 0, "application": "shop", "names": ["POST /payments"]}
MAIL = {"names": ["mail"], "application": ""}
PLACE = {"due": 2**53, "identity": IDENTITY, "limit": 50}
SHELF = {"due": 2**53, "number": 9, "name": "mail", "limit": 50}
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
        ("due", 0, {"duty": 3, "limit": 50, **KNOWN}, "semel_record_due"),
        ("newest", 0, {"duty": 5, **PLACE}, "semel_record_due"),
        ("newest_dead", 0, {"identity": IDENTITY, "limit": 50}, "semel_record_due"),
        ("retire", 0, RETIRED, "semel_record_resource"),
        ("newest_effects", 0, {"shelf": "delivered", **SHELF}, "semel_effect_due"),
        ("newest_dead_effects", 0, {**SHELF}, "semel_effect_due"),
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
    filled: Ask, name: str, part: int, params: dict[str, object], key: str
) -> None:
    plan = explained(filled, name, part, params)
    small = ("<", "semel_terms", "terms")  # a table in memory, or one that has a row for each route
    ours = [(kind, used) for table, kind, used in plan if not str(table).startswith(small)]
    assert ours
    assert all(used == key or used == "semel_effect_order" for _, used in ours), plan
    assert not {"ALL", "index"} & {kind for kind, _ in ours}, plan


@pytest.fixture(scope="module")
def filled(mariadb: MariadbServer) -> Iterator[Ask]:
    """Enough rows for a planner to care."""
    with mariadb.database() as url, opened(url) as backend:
        now = backend.blocking().perform(Read(Identity(IDENTITY))).now
        with Mysql(mariadb, url).admin() as ask:
            ask(
                "INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, "
                "method, path, `key`, on_lapse, terms, created_at, leased_until, duty, due_at, "
                "resource, snapshot, forget_at) SELECT UNHEX(SHA2(seq, 256)), "
                "IF(seq % 2, 3, 2), UNHEX(LEFT(SHA2(seq, 256), 32)), 'v1:', '', 'acme', "
                f"'POST', '/', 'key', 1, 0, {now}, {now}, IF(seq % 2, 5, 1), "
                f"{now} + CAST(seq AS SIGNED) * 1000000 - 2500000000, CONCAT('ride ', seq), "
                "IF(seq % 2, 'answer', NULL), "
                f"IF(seq % 2, {now}, NULL) FROM {numbers(5000)}"
            )
            ask(
                "INSERT INTO semel_effect (`key`, application, name, payload, state, created_at, "
                "due_at) SELECT CONCAT('key ', seq), '', 'mail', '', "
                "IF(seq % 20, 'delivered', 'waiting'), "
                f"{now}, {now} + CAST(seq AS SIGNED) * 1000000 - 2500000000 FROM {numbers(5000)}"
            )
            ask(
                "INSERT INTO semel_event SELECT 's', CONCAT('event ', seq), "
                f"{now} + CAST(seq AS SIGNED) * 1000000 - 100000000 FROM {numbers(5000)}"
            )
            ask("ANALYZE TABLE semel_record, semel_effect, semel_event")
            yield ask


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_a_request_asks_for_is_one_round_trip(database: Mysql, colour: str) -> None:
    with relayed(database, colour, pool_size=1) as (relay, perform, _):

        def trips(op: StoreOperation[Any]) -> int:
            before = queries(relay)
            perform(op)
            return queries(relay) - before

        op = claim()
        trips(claim())  # opens the connection
        assert trips(op) == 1
        assert trips(replace(op, fence=fence())) == 1
        assert trips(ops.Renew(op.identity, op.fence, MINUTE)) == 1
        assert trips(complete(op)) == 1
        assert trips(replace(op, fence=fence())) == 1
        assert trips(Read(op.identity)) == 1


# ── schema ────────────────────────────────────────────────────────────────────────────────────────


def test_a_migration_that_was_cut_short_is_done_again(database: Mysql) -> None:
    """Data definition commits by itself: what a crash leaves is some of the tables."""
    with database.admin() as ask:
        for text in dialect("mysql").migrations[0].statements[:3]:
            ask(text)
    with database.opened() as backend:
        assert isinstance(backend.blocking().perform(claim()), Claimed)
        assert backend.migrate() == len(dialect("mysql").migrations)


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


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_answers_that_drip_in_do_not_outlast_the_time_limit(database: Mysql, colour: str) -> None:
    with relayed(database, colour) as (relay, perform, batcher):
        op = claim()
        perform(op)
        relay.drip = True  # which takes it many times as long
        with hurried(batcher), pytest.raises(StoreUnavailable, match="time limit") as late:
            perform(Read(op.identity))
        assert late.value.applied is None
        relay.drip = False
        assert isinstance(perform(complete(op)), Applied)


def test_a_lock_that_is_not_given_up_in_time_is_surely_not_applied(
    database: Mysql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives up before we do: after a second here, and we would wait much longer."""
    monkeypatch.setattr(said, "ceil", lambda _: 2)
    with database.opened(pool_size=1) as backend:
        store, op = backend.blocking(), claim()
        store.perform(op)
        with database.row_locked(op.identity):
            with pytest.raises(StoreUnavailable, match="1205") as refused:
                store.perform(complete(op))
            assert refused.value.applied is False
        with database.admin() as ask:
            until(lambda: database.open_transactions(ask) == 0)
        assert isinstance(store.perform(complete(op)), Applied)


def test_a_change_and_what_is_told_of_it_are_one_step(database: Mysql) -> None:
    """A gate keeps it between the two; nobody can change the record in the meantime."""
    with database.opened() as backend, database.admin() as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        put_a_gate(ask)
        assert ask("SELECT GET_LOCK('gate', 0)") == 1
        with ThreadPoolExecutor(1) as threads:
            advancing = threads.submit(
                store.perform, ops.Advance(op.identity, op.fence, b"journal")
            )
            until(lambda: ask(database.STUCK) is not None)
            ask("SET SESSION innodb_lock_wait_timeout = 0")
            with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
                ask("UPDATE behind_the_gate SET fence = x'00'")
            ask("SELECT RELEASE_LOCK('gate')")
            assert isinstance(advancing.result(), Applied)


def put_a_gate(ask: Ask) -> None:
    """Before everybody who reads when a lease ends."""
    names = ask(
        "SELECT GROUP_CONCAT('`', column_name, '`') FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name = 'semel_record'"
    )
    ask(
        "CREATE FUNCTION passed(value BIGINT) RETURNS BIGINT DETERMINISTIC RETURN "
        "IF(GET_LOCK('gate', 3600) AND RELEASE_LOCK('gate'), value, NULL)"
    )
    ask("RENAME TABLE semel_record TO behind_the_gate")
    gated = names.replace("`leased_until`", "passed(leased_until) AS leased_until")
    ask(f"CREATE VIEW semel_record AS SELECT {gated} FROM behind_the_gate")


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", [Claim, ops.Complete])
def test_a_lost_answer_is_asked_for_again_with_the_same_fence(
    database: Mysql, colour: str, kind: type
) -> None:
    with relayed(database, colour) as (relay, perform, _):
        first, op = claim(), claim()
        perform(first)
        asked: StoreOperation[Any] = op if kind is Claim else complete(first)
        relay.drop = is_write
        reply = perform(asked)
        assert relay.dropped == 1
        assert isinstance(reply, Claimed if kind is Claim else Applied)
        with database.admin() as ask:
            assert ask("SELECT count(*) FROM semel_record") == (2 if kind is Claim else 1)


def test_a_deadlock_is_tried_again_with_the_same_fence(database: Mysql) -> None:
    """A stranger has a row, wants another, and is the heavier one: ours is the victim."""
    with database.opened() as backend, database.admin() as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        ask("CREATE TABLE stranger (n INT PRIMARY KEY, m INT) ENGINE = InnoDB")
        ask(f"INSERT INTO stranger SELECT seq, 0 FROM {numbers(200)}")
        ask(
            "CREATE TRIGGER entangled BEFORE UPDATE ON semel_record FOR EACH ROW "
            "UPDATE stranger SET m = m + 1 WHERE n = 1"
        )
        before = database.deadlocks(ask)
        with database.transaction() as other, ThreadPoolExecutor(1) as threads:
            other("UPDATE stranger SET m = 7")
            completing = threads.submit(store.perform, complete(op))
            until(lambda: len(database.waiting(ask)) == 1)
            other(f"UPDATE semel_record SET tries = tries WHERE identity = x'{op.identity.hex()}'")
            assert database.deadlocks(ask) == before + 1
            other("ROLLBACK")
            assert isinstance(completing.result(), Applied)


# ── what is sent ──────────────────────────────────────────────────────────────────────────────────


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
    queries = dialect("mysql").queries.values()
    looks = {query.name for query in queries if "@semel_found" in query.text}
    assert looks - MANY <= INSERTS
    assert "agree" in looks


@pytest.mark.parametrize("table", ["semel_record", "semel_audit"])
async def test_tables_of_semel_s_without_transactions_are_refused(
    mariadb_url: str, table: str
) -> None:
    backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
    backend.migrate()
    with closing(connect(mariadb_url)) as outside:
        executed(outside, f"ALTER TABLE {table} ENGINE = MyISAM")
    with pytest.raises(SchemaError, match=f"ALTER TABLE {table} ENGINE = InnoDB"):
        backend.blocking().perform(claim())
    with pytest.raises(SchemaError, match="may lose records"):
        await backend.awaited().perform(claim())
    with pytest.raises(SchemaError, match="may lose records"):
        backend.begin(claim().identity)
    with pytest.raises(SchemaError, match="may lose records"):
        await backend.abegin(claim().identity)
    await backend.aclose()
    backend.close()


def test_an_examination_names_tables_without_transactions(mariadb_url: str) -> None:
    backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
    backend.migrate()
    assert backend.examine() == ()
    with closing(connect(mariadb_url)) as outside:
        executed(outside, "CREATE TABLE notes (id integer) ENGINE = MyISAM")
        executed(outside, "CREATE TABLE drafts (id integer) ENGINE = MEMORY")
    (finding,) = backend.examine()
    assert finding.severity == "limit"
    assert "drafts (MEMORY), notes (MyISAM)" in finding.text
    backend.close()
