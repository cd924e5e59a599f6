"""``django://``: what the ORM writes and the key are one commit of Django's own connection."""

import asyncio
import sqlite3
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import django.test
import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.http import Http404, HttpResponse, StreamingHttpResponse

import semel
from semel.core.operations.requests import NoRecord, Read
from semel.errors import ConfigurationError
from semel.frameworks.django import guarded
from tests.databases import connect, end_connections, executed, numbers
from tests.frameworks import django_site
from tests.frameworks.django_site import GUARD, Row, Site, add_mysql, add_postgres, make_tables
from tests.servers import mysql
from tests.stores.relay import hang_up
from tests.waiting import PATIENCE, until
from tests.web.cable import Cable, Line
from tests.web.client import Reply, new_key
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Driver
from tests.web.hurry import overrun

ATOMIC = semel.ietf(mode="atomic")


@pytest.fixture(scope="module")
def sqlite() -> Iterator[str]:
    make_tables("default")
    yield "default"
    with connections["default"].schema_editor() as editor:  # others make it for themselves
        editor.delete_model(Row)


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def alias(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite"))
    if request.param == "mysql":
        add_mysql(request.getfixturevalue("mariadb_url"))
        return "my"
    add_postgres(request.getfixturevalue("postgres_url"))
    return "pg"


class Shop:
    """A project whose only view is an atomic one, and what is left of it in the database."""

    def __init__(self, alias: str, send: Driver, ran: list[str], seen: list[bytes]) -> None:
        self.alias = alias
        self.key = new_key()
        self.ran = ran
        self._send = send
        self._seen = seen

    def send(self, body: bytes = b"{}") -> Reply:
        return self._send(Ask(key=self.key, body=body))

    @property
    def rows(self) -> int:
        return Row.objects.using(self.alias).filter(name=self.key).count()

    def record(self) -> Any:
        found = semel.stores.open_backend(f"django://{self.alias}").blocking()
        return found.perform(Read(self._seen[-1]))  # type: ignore[arg-type]

    def left(self) -> tuple[int, bool]:
        """How many rows, and whether there is a record."""
        return self.rows, not isinstance(self.record(), NoRecord)


Begin = Callable[..., Shop]


@pytest.fixture
def begin(make_guard: MakeGuard, runner: asyncio.Runner) -> Iterator[Begin]:
    open_: list[Site] = []

    def serve(
        alias: str,
        act: Callable[[Any], HttpResponse | None],
        *,
        colour: str = "wsgi",
        awaited: Callable[[Any], Any] | None = None,
        decorated: bool = False,
        policy: semel.Policy = ATOMIC,
        **settings: Any,
    ) -> Shop:
        guard = make_guard(f"django://{alias}", policy=policy, name=new_key())
        ran: list[str] = []
        seen: list[bytes] = []

        def view(request: Any) -> HttpResponse:
            ran.append(request.headers["idempotency-key"])
            seen.append(semel.operation().identity)
            Row.objects.using(alias).create(name=ran[-1])
            return act(request) or HttpResponse(f"{len(ran)}", status=201)

        async def aview(request: Any) -> HttpResponse:
            ran.append(request.headers["idempotency-key"])
            seen.append(semel.async_operation().identity)
            await Row.objects.using(alias).acreate(name=ran[-1])
            if awaited is not None:
                await awaited(request)
            return act(request) or HttpResponse(f"{len(ran)}", status=201)

        made: Any = view if awaited is None else aview
        if decorated:
            made = guarded(guard, policy)(made)
        layers = [] if decorated else [GUARD]
        open_.append(Site(guard, {"x": made}, **{"MIDDLEWARE": layers, **settings}))
        return Shop(alias, open_[-1].driver(colour, runner), ran, seen)

    yield serve
    for site in reversed(open_):  # each puts back what was before it
        site.close()


def nothing(request: Any) -> None: ...


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [("default", "pg"), ("pg", "default")])
def test_a_write_to_another_database_is_refused_and_a_read_is_not(
    begin: Begin, sqlite: str, postgres_url: str, ours: str, theirs: str, awaited: bool
) -> None:
    """It would be another transaction: left behind where the view fails, doubled by a retry."""
    add_postgres(postgres_url)
    elsewhere = Row.objects.using(theirs)

    def act(request: Any) -> None:
        list(elsewhere.all())
        with transaction.atomic(using=theirs):
            list(elsewhere.select_for_update())
            if request.body == b"write":
                elsewhere.create(name="elsewhere")

    async def aact(request: Any) -> None:
        await sync_to_async(act)(request)

    calm: Any = nothing if awaited else act
    shop = begin(ours, calm, awaited=aact if awaited else None)
    assert shop.send(b"write").status == 500
    assert shop.left() == (0, False)
    assert not elsewhere.filter(name="elsewhere").exists()
    shop.key = new_key()
    assert (shop.send(b"read").status, shop.rows) == (201, 1)
    assert elsewhere.create(name=new_key()).pk  # refused in the view alone


async def anothing(request: Any) -> None: ...


def broken(request: Any) -> None:
    raise RuntimeError("after the row was written")


WAYS = [
    ("wsgi", None, False),
    ("asgi", None, False),
    ("wsgi", anothing, False),
    ("asgi", anothing, False),
    ("wsgi", None, True),
    ("asgi", anothing, True),
]
ways = pytest.mark.parametrize(
    ("colour", "awaited", "decorated"),
    WAYS,
    ids=[f"{c}-{'async' if a else 'sync'}{'-decorated' * d}" for c, a, d in WAYS],
)


@ways
def test_the_row_and_the_key_are_one_commit(
    alias: str, begin: Begin, colour: str, awaited: Any, decorated: bool
) -> None:
    shop = begin(alias, nothing, colour=colour, awaited=awaited, decorated=decorated)
    first, again = shop.send(), shop.send()
    assert (first.status, again.body, again.replayed) == (201, first.body, True)
    assert shop.left() == (1, True)
    assert len(shop.ran) == 1


@ways
def test_what_fails_leaves_nothing_and_may_be_tried_again(
    alias: str, begin: Begin, colour: str, awaited: Any, decorated: bool
) -> None:
    acts = [broken, nothing]
    shop = begin(
        alias, lambda _: acts.pop(0)(_), colour=colour, awaited=awaited, decorated=decorated
    )
    assert shop.send().status == 500
    assert shop.left() == (0, False)
    assert shop.send().status == 201
    assert shop.left() == (1, True)


def test_a_kept_server_error_is_kept_without_its_rows(alias: str, begin: Begin) -> None:
    shop = begin(alias, broken, policy=semel.stripe(mode="atomic"))
    assert [shop.send().status for _ in range(2)] == [500, 500]
    assert shop.left() == (0, True)
    assert len(shop.ran) == 1


@pytest.mark.parametrize("decorated", [False, True])
def test_atomic_requests_are_within(sqlite: str, begin: Begin, decorated: bool) -> None:
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    try:
        shop = begin(sqlite, nothing, decorated=decorated)
        assert (shop.send().status, shop.send().replayed) == (201, True)
        assert shop.left() == (1, True)
        shop = begin(sqlite, broken, decorated=decorated)
        assert shop.send().status == 500
        assert shop.left() == (0, False)
    finally:
        connections.settings["default"]["ATOMIC_REQUESTS"] = False


def test_atomic_requests_hold_within_a_decorated_view_of_any_mode(
    sqlite: str, begin: Begin
) -> None:
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    try:
        shop = begin(sqlite, broken, decorated=True, policy=semel.ietf())
        assert (shop.send().status, shop.rows) == (500, 0)
    finally:
        connections.settings["default"]["ATOMIC_REQUESTS"] = False


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("policy", [ATOMIC, semel.ietf()], ids=["atomic", "leased"])
def test_a_transaction_around_the_guard_is_refused(
    sqlite: str, begin: Begin, policy: semel.Policy, decorated: bool
) -> None:
    """Its commit would come after the answer was kept, and might fail."""

    def around(get_response: Any) -> Any:
        def middleware(request: Any) -> Any:
            with transaction.atomic():
                return get_response(request)

        return middleware

    globals()["around"] = around
    layers = [f"{__name__}.around", *([] if decorated else [GUARD])]
    shop = begin(sqlite, nothing, decorated=decorated, policy=policy, MIDDLEWARE=layers)
    assert shop.send().code == "misconfigured"
    assert shop.ran == []


def test_handlers_may_nest_and_undo_transactions_of_their_own(alias: str, begin: Begin) -> None:
    def nested(request: Any) -> None:
        with pytest.raises(IntegrityError), transaction.atomic(using=alias):
            Row.objects.using(alias).create(pk=Row.objects.using(alias).latest("pk").pk)
        with transaction.atomic(using=alias):
            Row.objects.using(alias).create(name=request.headers["idempotency-key"])
            transaction.set_rollback(True, using=alias)
        with transaction.atomic(using=alias):
            Row.objects.using(alias).create(name=request.headers["idempotency-key"])

    shop = begin(alias, nested)
    assert shop.send().status == 201
    assert shop.left() == (2, True)


def test_set_rollback_undoes_the_rows_and_the_answer_stands(alias: str, begin: Begin) -> None:
    shop = begin(alias, lambda _: transaction.set_rollback(True, using=alias))
    assert (shop.send().status, shop.send().replayed) == (201, True)
    assert shop.left() == (0, True)


@ways
@pytest.mark.parametrize("raises", [True, False], ids=["raised", "returned"])
def test_a_refusal_that_is_raised_undoes_the_rows_and_one_that_is_returned_does_not(
    sqlite: str, begin: Begin, colour: str, awaited: Any, decorated: bool, raises: bool
) -> None:
    """As ATOMIC_REQUESTS has it. The answer is kept either way."""

    def refuse(request: Any) -> HttpResponse:
        if raises:
            raise Http404
        return HttpResponse(status=404)

    shop = begin(sqlite, refuse, colour=colour, awaited=awaited, decorated=decorated)
    assert [(reply.status, reply.replayed) for reply in (shop.send(), shop.send())] == [
        (404, False),
        (404, True),
    ]
    assert shop.left() == (0 if raises else 1, True)


def failing(request: Any, alias: str) -> None:
    """One of the view's writes breaks the transaction, and the view goes on as if it had not."""
    row = Row.objects.using(alias).get(name=request.headers["idempotency-key"])
    with suppress(IntegrityError):
        Row(pk=row.pk, name="again").save(using=alias, force_insert=True)


@ways
def test_a_view_that_hides_a_write_that_failed_has_not_succeeded(
    sqlite: str, begin: Begin, colour: str, awaited: Any, decorated: bool
) -> None:
    """Django undoes all its writes: a success without them must not be kept."""

    def hidden(request: Any) -> None:
        if len(shop.ran) == 1:
            failing(request, sqlite)

    async def ahidden(request: Any) -> None:
        await sync_to_async(hidden)(request)

    act, how = (nothing, ahidden) if awaited else (hidden, None)
    shop = begin(sqlite, act, colour=colour, awaited=how, decorated=decorated)
    assert shop.send().status == 500
    assert shop.left() == (0, False)
    assert [shop.send().replayed for _ in range(2)] == [False, True]
    assert shop.left() == (1, True)


def test_a_write_that_failed_on_postgresql_is_no_success_either(
    postgres_url: str, begin: Begin
) -> None:
    add_postgres(postgres_url)
    shop = begin("pg", lambda request: failing(request, "pg"))
    assert shop.send().status == 500
    assert shop.left() == (0, False)


def test_a_write_that_failed_in_a_block_of_its_own_breaks_nothing(alias: str, begin: Begin) -> None:
    """Also where the view undoes its writes itself, later, and means its answer."""

    def act(request: Any) -> None:
        with suppress(IntegrityError), transaction.atomic(using=alias):
            Row(pk=Row.objects.using(alias).get(name=shop.key).pk).save(
                using=alias, force_insert=True
            )
        if "undo" in request.body.decode():
            transaction.set_rollback(True, using=alias)

    shop = begin(alias, act)
    assert (shop.send().status, shop.send().replayed) == (201, True)
    assert shop.left() == (1, True)
    shop.key = new_key()
    assert (shop.send(b'"undo"').status, shop.send(b'"undo"').replayed) == (201, True)
    assert shop.left() == (0, True)


POINTS = semel.ietf(mode="resumable", required=True)


@pytest.mark.parametrize("how", ["hidden", "set_rollback", "left open"])
def test_a_phase_whose_writes_django_undoes_is_not_passed(
    sqlite: str, begin: Begin, how: str
) -> None:
    blocks: list[Any] = []

    def work(request: Any) -> None:
        Row.objects.using(sqlite).create(name=shop.key)
        if how == "left open":
            blocks.append(transaction.atomic(using=sqlite))
            blocks[-1].__enter__()
        elif how == "hidden":
            failing(request, sqlite)
        else:
            transaction.set_rollback(True, using=sqlite)

    def act(request: Any) -> None:
        Row.objects.using(sqlite).filter(name=shop.key).delete()  # the view's own, in no phase
        semel.operation().phase("rows", work, request)

    shop = begin(sqlite, act, policy=POINTS)
    assert shop.send().status >= 500
    assert shop.rows == 0
    assert connections[sqlite].in_atomic_block is False


def test_where_django_does_not_commit_by_itself_nothing_is_run(
    postgres_url: str, begin: Begin
) -> None:
    """Its outermost block would be a savepoint: the answer would be sent and nothing be there."""
    add_postgres(postgres_url)
    connections.settings["pg"]["AUTOCOMMIT"] = False
    shop = begin("pg", nothing)
    reply = shop.send()
    assert (reply.status, reply.code, shop.ran) == (500, "misconfigured", [])


def cut_before(line: Line, message: bytes) -> None:
    hang_up(line.far)
    hang_up(line.near)


def cut_after(line: Line, message: bytes) -> None:
    line.commit(message)
    cut_before(line, message)


@pytest.mark.parametrize(("colour", "awaited"), [("wsgi", None), ("asgi", anothing)])
@pytest.mark.parametrize("cut", [cut_before, cut_after])
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_commit_that_nobody_answered_is_looked_up(
    request: pytest.FixtureRequest,
    begin: Begin,
    cut: Any,
    colour: str,
    awaited: Any,
    server: str,
) -> None:
    """Django's own connection is cut at its COMMIT: before the server has it, or after."""
    reached = cut is cut_after
    with Cable(request.getfixturevalue(f"{server}_url")) as cable:
        (add_postgres if server == "postgres" else add_mysql)(cable.url)
        alias = "pg" if server == "postgres" else "my"
        shop = begin(alias, nothing, awaited=awaited, colour=colour)
        cable.cut = cut
        first = shop.send()
        assert cable.cut is None
        assert first.status == (201 if reached else 503)
        assert shop.left() == ((1, True) if reached else (0, False))
        assert [shop.send().status for _ in range(2)] == [201, 201]
        assert len(shop.ran) == (1 if reached else 2)
        assert shop.left() == (1, True)
        connections[alias].close()


def test_on_commit_runs_after_the_commit_and_only_then(alias: str, begin: Begin) -> None:
    told: list[tuple[int, bool]] = []

    def hook() -> None:
        told.append(shop.left())

    def register(request: Any) -> None:
        transaction.on_commit(hook, using=alias)
        if len(shop.ran) == 1:
            raise RuntimeError("the first time it is not committed")

    shop = begin(alias, register)
    assert [shop.send().status for _ in range(3)] == [500, 201, 201]
    assert told == [(1, True)]


def test_what_a_commit_hook_raises_does_not_undo_the_answer(
    alias: str, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def hook() -> None:
        raise RuntimeError("the mail server is away")

    shop = begin(alias, lambda _: transaction.on_commit(hook, using=alias))
    assert (shop.send().status, shop.send().replayed) == (201, True)
    assert shop.left() == (1, True)
    assert "transaction.on_commit raised" in caplog.text


@pytest.mark.parametrize("then", ["answer", "raise", "set_rollback"])
@pytest.mark.parametrize(
    "ending", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN; SAVEPOINT semel"]
)
def test_a_handler_that_ends_the_transaction_is_found_out(
    alias: str, begin: Begin, ending: str, then: str
) -> None:
    def end(request: Any) -> None:
        with connections[alias].cursor() as cursor:
            for statement in ending.split(";"):
                cursor.execute(statement)
        if then == "raise":
            raise RuntimeError("after that")
        if then == "set_rollback":
            transaction.set_rollback(True, using=alias)

    shop = begin(alias, end)
    assert shop.send().status == 500
    assert shop.send().code == "outcome-unknown"
    assert len(shop.ran) == 1
    assert connections[alias].in_atomic_block is False


@pytest.mark.parametrize("table", ["TABLE", "TEMPORARY TABLE"])
@pytest.mark.parametrize("then", ["raise", "set_rollback"])
def test_a_view_whose_writes_mariadb_cannot_undo_is_in_doubt(
    mariadb_url: str, begin: Begin, table: str, then: str
) -> None:
    """Those into a table without transactions; a temporary table is gone with its connection. MySQL
    tells it apart where it goes back to a savepoint; on MariaDB all has to be undone to know."""
    told_apart = mysql.wanted() and (table, then) == ("TEMPORARY TABLE", "set_rollback")
    add_mysql(mariadb_url)
    with closing(connect(mariadb_url)) as outside:
        executed(outside, "CREATE TABLE notes (id integer) ENGINE = MyISAM")

    def note(request: Any) -> None:
        with connections["my"].cursor() as cursor:
            if table == "TABLE":
                cursor.execute("INSERT INTO notes VALUES (1)")
            else:
                cursor.execute("CREATE TEMPORARY TABLE draft (id integer)")
        if len(shop.ran) == 1:
            if then == "raise":
                raise RuntimeError("after that")
            transaction.set_rollback(True, using="my")

    shop = begin("my", note)
    first = shop.send()
    assert (first.status == 201) if told_apart else (first.status >= 500)
    connections["my"].close()
    again = shop.send()
    if told_apart:
        assert (again.replayed, len(shop.ran), shop.left()) == (True, 1, (0, True))
    elif table == "TABLE":
        assert (again.code, len(shop.ran)) == ("outcome-unknown", 1)
    else:
        assert (again.status, len(shop.ran), shop.left()) == (201, 2, (1, True))


def test_a_view_that_closes_the_connection_has_done_nothing(alias: str, begin: Begin) -> None:
    def close(request: Any) -> None:
        if len(shop.ran) == 1:
            connections[alias].close()

    shop = begin(alias, close)
    assert shop.send().code == "not-executed"
    assert shop.left() == (0, False)
    assert [shop.send().replayed for _ in range(2)] == [False, True]
    assert shop.left() == (1, True)


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_connection_that_died_while_it_was_kept_is_replaced(
    request: pytest.FixtureRequest, begin: Begin, server: str
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    (add_postgres if server == "postgres" else add_mysql)(url, CONN_MAX_AGE=None)
    alias = "pg" if server == "postgres" else "my"
    shop = begin(alias, nothing)
    assert shop.send().status == 201
    assert connections[alias].connection is not None, "CONN_MAX_AGE keeps it"
    Row.objects.using(alias).first()
    shop.key = new_key()
    end_connections(url)
    assert shop.send().status == 201
    assert shop.left() == (1, True)


def psycopg_of(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True)


def test_another_isolation_level_does_not_hide_what_the_lock_protects(
    postgres_url: str, begin: Begin
) -> None:
    from psycopg import IsolationLevel

    add_postgres(postgres_url, OPTIONS={"isolation_level": IsolationLevel.SERIALIZABLE})
    levels: list[str] = []

    def look(request: Any) -> None:
        with connections["pg"].cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            levels.extend(cursor.fetchone() or ())

    shop = begin("pg", look)
    assert (shop.send().status, levels) == (201, ["read committed"])


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_nor_does_one_of_mariadb_s(mariadb_url: str, begin: Begin, level: str) -> None:
    add_mysql(mariadb_url, OPTIONS={"isolation_level": level})
    levels: list[str] = []

    def look(request: Any) -> None:
        with connections["my"].cursor() as cursor:
            cursor.execute(
                "SELECT trx_isolation_level FROM information_schema.innodb_trx "
                "WHERE trx_mysql_thread_id = CONNECTION_ID()"
            )
            levels.extend(cursor.fetchone() or ())

    shop = begin("my", look)
    assert (shop.send().status, levels) == (201, ["READ COMMITTED"])
    with connections["my"].cursor() as cursor:
        name = "transaction_isolation" if mysql.wanted() else "tx_isolation"
        cursor.execute(f"SELECT @@{name}")
        assert cursor.fetchone() == (level.replace(" ", "-").upper(),)


@pytest.mark.parametrize("raises", [False, True])
def test_a_view_that_makes_a_table_on_mariadb_is_in_doubt(
    mariadb_url: str, begin: Begin, raises: bool
) -> None:
    """It commits what came before it, whatever the view says then."""
    add_mysql(mariadb_url)

    def make(request: Any) -> None:
        with connections["my"].cursor() as cursor:
            cursor.execute("CREATE TABLE another (id int)")
        if raises:
            raise RuntimeError("nothing happened, it thinks")

    shop = begin("my", make)
    assert shop.send().status == 500
    assert shop.send().code == "outcome-unknown"
    assert len(shop.ran) == 1


@pytest.mark.parametrize("catches", [False, True])
def test_after_a_deadlock_on_mariadb_nothing_is_kept_and_a_retry_runs(
    mariadb_url: str, begin: Begin, catches: bool
) -> None:
    add_mysql(mariadb_url)
    one, two = (Row.objects.using("my").create(name=name).pk for name in ("one", "two"))
    held = "UPDATE site_row SET name = name WHERE id = {}".format

    def collide(request: Any) -> None:
        """The server undoes the one that wrote less."""
        if len(shop.ran) > 1:
            return
        with (
            closing(connect(mariadb_url)) as rival,
            closing(connect(mariadb_url)) as look,
            connections["my"].cursor() as cursor,
            ThreadPoolExecutor(1) as threads,
        ):
            executed(rival, "START TRANSACTION")
            executed(rival, held(one))
            executed(rival, f"INSERT INTO site_row (name) SELECT 'x' FROM {numbers(500)}")
            cursor.execute(held(two))
            waiting = threads.submit(executed, rival, held(two))
            found = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
            until(lambda: executed(look, "DO SLEEP(0.15)") or executed(look, found))
            try:
                cursor.execute(held(one))
            except OperationalError:
                if not catches:
                    raise
            finally:
                waiting.result(PATIENCE)
                executed(rival, "ROLLBACK")

    shop = begin("my", collide)
    assert shop.send().status in (500, 503)
    assert shop.left() == (0, False)
    assert (shop.send().status, shop.send().replayed) == (201, True)
    assert shop.left() == (1, True)


def test_no_lock_of_mariadb_is_left_on_django_s_connection(mariadb_url: str, begin: Begin) -> None:
    add_mysql(mariadb_url, CONN_MAX_AGE=None)
    shop = begin("my", nothing)
    assert shop.send().status == 201
    with connections["my"].cursor() as cursor:
        cursor.execute("SELECT RELEASE_ALL_LOCKS(), @@wait_timeout = @@GLOBAL.wait_timeout")
        assert cursor.fetchone() == (0, 1)


def test_a_request_that_runs_is_told_at_once(alias: str, begin: Begin) -> None:
    """From the same process; the other holds nothing, so it can be asked right here."""
    replies: list[Reply] = []

    def ask_again(request: Any) -> None:
        def other() -> None:
            replies.append(shop.send())
            connections.close_all()

        import threading

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    shop = begin(alias, ask_again)
    assert shop.send().status == 201
    assert [reply.code for reply in replies] == ["in-flight"]


def test_a_stream_in_a_transaction_is_kept_whole_however_large(alias: str, begin: Begin) -> None:
    policy = semel.ietf(mode="atomic", max_response_body=4)
    shop = begin(alias, lambda _: StreamingHttpResponse([b"many", b"bytes"]), policy=policy)
    first = shop.send()
    assert (first.body, shop.send().status) == (b"manybytes", 409)
    assert shop.left() == (1, True)


@pytest.mark.parametrize("awaited", [None, anothing])
def test_an_effect_is_written_in_the_transaction(alias: str, begin: Begin, awaited: Any) -> None:
    async def write(request: Any) -> None:
        await semel.async_operation().enqueue("mail", {"to": 1})

    def also(request: Any) -> None:
        if awaited is None:
            semel.operation().enqueue("mail", {"to": 1})
        with_effects.append(1)
        if len(with_effects) == 1:
            raise RuntimeError("the first is undone")

    with_effects: list[int] = []
    shop = begin(alias, also, awaited=write if awaited else None)
    assert [shop.send().status for _ in range(2)] == [500, 201]
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM semel_effect WHERE name = 'mail'")
        assert cursor.fetchone()[0] >= 1


def test_a_view_that_runs_too_long_commits_nothing(alias: str, begin: Begin) -> None:
    """Past max_run: on PostgreSQL it is cut off at once, on SQLite when it comes to its end."""
    cut: list[bool] = []

    def hang(request: Any) -> None:
        if not cut:
            cut.append(until(overrun(django_site.guard)))

    shop = begin(alias, hang)
    assert shop.send().status == 503
    assert shop.left() == (0, False)
    assert shop.send().status == 201
    assert shop.left() == (1, True)


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_on_sqlite_has_the_write_lock_from_its_start(sqlite: str) -> None:
    """One that reads first might not be let write after another has."""
    backend: Any = semel.stores.open_backend("django://default")
    transaction = backend.begin(b"\1" * 32)
    other = sqlite3.connect(connections["default"].settings_dict["NAME"], timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    transaction.roll_back()
    other.execute("BEGIN IMMEDIATE")
    other.close()


def test_a_transaction_in_another_one_is_refused(sqlite: str) -> None:
    backend: Any = semel.stores.open_backend("django://default")
    with transaction.atomic(), pytest.raises(ConfigurationError, match="is open around"):
        backend.begin(b"\2" * 32)


def test_the_tenant_may_be_a_question_to_the_database_in_an_event_loop(
    sqlite: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    who = Row.objects.create(name=new_key())
    guard = make_guard(tenant=lambda _: Row.objects.get(pk=who.pk).name)
    site = Site(guard, {"x": lambda request: HttpResponse("hello")})
    assert site.driver("asgi", runner)().status == 200
    site.close()


def test_while_djangos_tests_are_run_everything_is_in_their_transaction(sqlite: str) -> None:
    """On any database: a file here, which semel would otherwise open by itself."""
    guard = semel.Guard("django://default", tenant=None, name=new_key())
    key, ran = new_key(), []

    class Case(django.test.TestCase):
        def test(self) -> None:
            done = [guard.once(key, lambda: ran.append(1), name="it") for _ in range(2)]
            assert [once.replayed for once in done] == [False, True]

    django.test.utils.setup_test_environment()
    try:
        result = unittest.TestResult()
        unittest.TestSuite([Case("test")]).run(result)
    finally:
        django.test.utils.teardown_test_environment()
    assert (result.errors, result.failures, ran) == ([], [], [1])
    assert not guard.once(key, lambda: ran.append(1), name="it").replayed
    guard.close()


@pytest.mark.parametrize("url", ["django://", "django://none", "django://default?colour=red"])
def test_what_is_no_database_of_the_project_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        semel.Guard(url, tenant=None, policy=ATOMIC)


def test_missing_tables_are_djangos_to_make(postgres_url: str, begin: Begin) -> None:
    add_postgres(postgres_url)
    with psycopg_of(postgres_url) as other:
        other.execute("DROP TABLE semel_schema, semel_record CASCADE")
    for policy in (ATOMIC, semel.ietf()):
        backend = semel.stores.open_backend("django://pg")
        shop = begin("pg", nothing, policy=policy)
        assert shop.send().code == "store-unavailable"
        with pytest.raises(ConfigurationError, match=r"manage\.py migrate"):
            backend.blocking().perform(Read(b"\0" * 32))  # type: ignore[arg-type]
        backend.close()


def test_the_other_connection_is_left_as_django_had_it(alias: str, begin: Begin) -> None:
    shop = begin(alias, nothing)
    shop.send()
    wrapper = connections[alias]
    wrapper.ensure_connection()
    assert wrapper.get_autocommit()
    assert (wrapper.atomic_blocks, wrapper.savepoint_ids, wrapper.run_on_commit) == ([], [], [])
    assert connection is not None
