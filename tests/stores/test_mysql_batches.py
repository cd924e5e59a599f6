"""Operations that travel together in MariaDB: each is still done once, and answered by itself."""

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import pymysql
import pytest

from semel.core.frozen import replace
from semel.core.operations.requests import (
    Applied,
    Claim,
    Claimed,
    Complete,
    Fetch,
    Found,
    Lost,
    NoRecord,
    Read,
    Renew,
    Stale,
    StoreOperation,
)
from semel.core.records import Fence, Identity, State
from semel.core.stored.snapshot import LARGE, brief
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores.mysql import MysqlBackend
from semel.stores.mysql.errors import DUPLICATE, TOO_LARGE, WAITED, MysqlFault, store_error
from semel.stores.mysql.protocol import exchange, packet
from semel.stores.mysql.values import KINDS
from semel.stores.sql.batching import MAX_BATCHED, MAX_ROWS, Batch, SendAlone
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Statement
from tests.proof.floors import missing, rounds
from tests.servers import MariadbServer
from tests.stores.contract import MINUTE
from tests.stores.harness import database_of
from tests.stores.test_batching import Note, queued
from tests.stores.test_mysql import KILL, WAITING, admin, deadlocks, row_locked
from tests.stores.together import (
    DAY,
    MANY,
    awaited,
    claim,
    complete,
    never_overdue,
    outcomes,
    raced,
    renew,
    rival,
    threaded,
    together,
)
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def lone_server(mariadb: MariadbServer) -> Iterator[MariadbServer]:
    with MariadbServer() as server:
        yield server


@pytest.fixture
def own_server(lone_server: MariadbServer) -> MariadbServer:
    """One where nobody else writes, with a database of ours; who stops it starts it again."""
    lone_server.execute("DROP DATABASE IF EXISTS shop")
    lone_server.execute("CREATE DATABASE shop")
    return lone_server


def commits(server: MariadbServer) -> int:
    """How often something was written: a multi-row statement counts once."""
    asked = "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_insert_select', 'Com_update')"
    return sum(int(value) for _, value in server.execute(asked))


# ── what travels together ─────────────────────────────────────────────────────────────────────────


async def test_many_at_once_need_few_statements(
    own_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    async with awaited(own_server.url_of("shop")) as store:
        await store.perform(claim())
        ops = [claim(number) for number in range(640)]
        before = commits(own_server)
        assert {type(reply) for reply in await together(store, ops)} == {Claimed}
        claimed = commits(own_server)
        done = await together(store, [renew(op) for op in ops])
        assert {type(reply) for reply in done} == {Applied}
        renewed = commits(own_server)
        done = await together(store, [complete(op) for op in ops])
        assert {type(reply) for reply in done} == {Applied}
        assert claimed - before < 640 / MAX_ROWS + 5
        assert renewed - claimed < 640 / MAX_ROWS + 5
        assert commits(own_server) - renewed < 640 / MAX_ROWS + 5


async def test_each_caller_gets_the_reply_to_its_own_operation(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(MANY)]
        bodies = [secrets.token_bytes(1 + number * 37) for number in range(MANY)]
        for op, claimed in zip(ops, await together(store, ops), strict=True):
            assert isinstance(claimed, Claimed)
            assert 0 < claimed.leased_until - claimed.now <= op.lease
        done = await together(store, [complete(*each) for each in zip(ops, bodies, strict=True)])
        assert all(
            isinstance(reply, Applied)
            and reply.state is State.COMPLETED
            and reply.expires_at is not None
            and 0 < reply.expires_at - reply.now <= DAY
            for reply in done
        )
        replayed = await together(store, [rival(op) for op in ops])
        read = await together(store, [Read(op.identity) for op in reversed(ops)])
        for op, body, *found in zip(ops, bodies, replayed, reversed(read), strict=True):
            for reply in found:
                assert isinstance(reply, Found)
                record = reply.record
                assert (record.identity, record.fence) == (op.identity, op.fence)
                assert (record.fingerprint, record.fields) == (op.fingerprint, op.fields)
                assert record.snapshot == body
        with admin(mariadb, mariadb_url) as ask:
            kept = "SELECT CONCAT(tenant, method, path, `key`) FROM semel_record WHERE identity = "
            for op in ops:
                origin = op.origin
                text = origin.tenant + origin.method + origin.path + origin.key
                assert ask(f"{kept} x'{op.identity.hex()}'").decode() == text


ROW = "SELECT * FROM semel_record WHERE identity = x'{}'"
TIMES = ("identity", "created_at", "leased_until", "expires_at", "forget_at", "due_at", "fence")


async def test_a_batch_writes_what_each_operation_would_have_written_alone(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """Every column; of the times, how far they are apart."""
    async with awaited(mariadb_url) as store:
        alone = replace(claim(7), request=b"request", fresh_until=2**60)
        many = [replace(alone, identity=Identity(secrets.token_bytes(32))) for _ in range(20)]
        await store.perform(alone)
        await together(store, many)
        first = rows_of(mariadb, mariadb_url, [alone, *many])
        assert first[1:] == first[:1] * 20
        finish = replace(complete(alone), resource="invoice", tombstone=5 * DAY)
        await store.perform(finish)
        await together(store, [replace(finish, identity=op.identity) for op in many])
        last = rows_of(mariadb, mariadb_url, [alone, *many])
        assert last[1:] == last[:1] * 20
        assert last != first


def rows_of(server: MariadbServer, url: str, ops: Sequence[Claim]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        for op in ops:
            cursor.execute(ROW.format(op.identity.hex()))
            names = [column[0] for column in cursor.description]
            row = dict(zip(names, cursor.fetchone() or (), strict=True))
            row["leased for"] = row["leased_until"] and row["leased_until"] - row["created_at"]
            row["due for"] = row["due_at"] - (row["expires_at"] or row["leased_until"])
            row["forgotten"] = row["forget_at"] and row["forget_at"] - row["expires_at"]
            told.append({name: row[name] for name in row if name not in TIMES})
    return told


async def test_a_batch_does_what_each_operation_would_have_done_alone(mariadb_url: str) -> None:
    """Every kind of reply, each from the middle of a batch."""
    async with awaited(mariadb_url) as store:
        await store.perform(busy := claim())
        await store.perform(done := claim())
        await store.perform(complete(done))
        absurd = {
            rival(busy): Found,
            busy: Claimed,  # its own fence: an earlier try of the same claim
            rival(done): Found,
            done: Found,
            replace(claim(), fresh_until=1): Stale,
            replace(rival(done), fresh_until=1): Found,
        }
        filler = [claim(number) for number in range(40)]
        ops: list[StoreOperation[Any]] = [*filler[:20], *absurd, *filler[20:]]
        replies = await together(store, ops)
        assert [type(reply) for reply in replies[20:26]] == list(absurd.values())
        assert {type(reply) for reply in replies[:20] + replies[26:]} == {Claimed}
        renewals = [renew(op) for op in [*filler, done, rival(busy), claim(), busy]]
        replies = await together(store, renewals)
        assert [type(reply) for reply in replies[40:]] == [Lost, Lost, Lost, Applied]
        for op, reply in zip(renewals[:40], replies[:40], strict=True):
            assert isinstance(reply, Applied)
            assert reply.state is State.IN_PROGRESS
            assert reply.leased_until is not None
            assert op.lease - MINUTE < reply.leased_until - reply.now <= op.lease
        ops = [complete(op) for op in filler]
        ops += [complete(done), complete(rival(busy)), complete(claim()), complete(busy)]
        replies = await together(store, ops)
        assert [type(reply) for reply in replies[40:]] == [Applied, Lost, Lost, Applied]
        assert {type(reply) for reply in replies[:40]} == {Applied}
        replies = await together(store, [Read(op.identity) for op in [*filler, claim()]])
        assert [type(reply) for reply in replies] == [Found] * 40 + [NoRecord]


async def test_five_hundred_claims_of_fifty_keys_have_fifty_winners(mariadb_url: str) -> None:
    async with awaited(mariadb_url) as store:
        keys = [claim(number) for number in range(50)]
        ops = [rival(op) for _ in range(10) for op in keys]
        replies = await together(store, ops)
        winners = [op for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
        assert Counter(op.identity for op in winners) == {op.identity: 1 for op in keys}
        fences = {op.identity: op.fence for op in winners}
        for op, reply in zip(ops, replies, strict=True):
            assert isinstance(reply, Claimed) or reply.record.fence == fences[op.identity]


async def test_replays_in_a_batch_write_nothing_and_wait_for_no_lock(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(MANY)]
        await together(store, ops)
        await together(store, [complete(op) for op in ops[::2]])
        written = "SHOW GLOBAL STATUS WHERE variable_name REGEXP 'Innodb_rows_(ins|upd)'"
        before = await asyncio.to_thread(mariadb.execute, written)
        with row_locked(mariadb, mariadb_url, ops[0].identity):
            replies = await together(store, [rival(op) for op in ops])
            replies += await together(store, [Read(op.identity) for op in ops])
        assert {type(reply) for reply in replies} == {Found}
        assert await asyncio.to_thread(mariadb.execute, written) == before


async def test_replays_in_a_batch_stay_together(
    own_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    async with awaited(own_server.url_of("shop")) as store:
        ops = [claim(number) for number in range(MANY)]
        await together(store, ops)
        before = commits(own_server)
        found = await together(store, [rival(op) for op in ops] + [claim() for _ in range(20)])
        assert Counter(map(type, found)) == {Found: MANY, Claimed: 20}
        assert commits(own_server) - before < MANY / MAX_ROWS + 5


async def test_a_stale_holder_completes_nothing_in_a_batch(mariadb_url: str) -> None:
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(40)]
        await together(store, ops)
        late = [complete(rival(op), b"late") for op in ops[:20]]
        replies = await together(store, [*late, *(complete(op) for op in ops[20:])])
        assert {type(reply) for reply in replies[:20]} == {Lost}
        assert {type(reply) for reply in replies[20:]} == {Applied}
        read = await together(store, [Read(op.identity) for op in ops[:20]])
        assert {reply.record.state for reply in read} == {State.IN_PROGRESS}


async def test_large_answers_are_written_and_fetched_alone(mariadb_url: str) -> None:
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(40)]
        bodies = [
            secrets.token_bytes(size)
            for size in (10, LARGE, MAX_BATCHED, MAX_BATCHED + 1, 500_000) * 8
        ]
        await together(store, ops)
        done = await together(store, [complete(*each) for each in zip(ops, bodies, strict=True)])
        assert {type(reply) for reply in done} == {Applied}
        replies = await together(store, [rival(op) for op in ops])
        replies += await together(store, [Read(op.identity) for op in ops])
        assert [reply.record.snapshot for reply in replies] == [*map(brief, bodies)] * 2
        whole = await together(store, [Fetch(op.identity, op.fence, b"") for op in ops])
        assert [reply.snapshot for reply in whole] == bodies


# ── one member's trouble is its own ───────────────────────────────────────────────────────────────


async def test_an_operation_that_the_server_refuses_spoils_no_other(mariadb_url: str) -> None:
    async with awaited(mariadb_url) as store:
        long = replace(claim(), identity=Identity(bytes(33)))
        fence = replace(claim(), fence=Fence(bytes(17)))
        nul = replace(claim(), fingerprint="nul \0")
        huge = replace(claim(), lease=2**80)
        ops = [claim(), claim(), long, claim(), fence, claim(), nul, claim(), huge, claim()]
        replies = await outcomes(store, ops)
        bad = [type(reply) for reply in replies if isinstance(reply, Exception)]
        assert bad == [StoreCorrupt, StoreCorrupt, ConfigurationError, StoreCorrupt]
        good = [op for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
        assert len(good) == 6
        completions = [complete(op) for op in good]
        completions[2] = replace(completions[2], retention=2**63 - 1)  # past the end of time
        replies = await outcomes(store, completions)
        assert isinstance(replies.pop(2), StoreCorrupt)
        assert {type(reply) for reply in replies} == {Applied}


async def test_a_corrupt_record_is_the_error_of_who_asked_for_it(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(20)]
        await together(store, ops)
        with admin(mariadb, mariadb_url) as ask:
            ask("SET SESSION check_constraint_checks = OFF")
            ask(
                "UPDATE semel_record SET state = 'nonsense' "
                f"WHERE identity = x'{ops[7].identity.hex()}'"
            )
        for asked in ([rival(op) for op in ops], [Read(op.identity) for op in ops]):
            replies = await outcomes(store, asked)
            assert isinstance(replies.pop(7), StoreCorrupt)
            assert {type(reply) for reply in replies} == {Found}


async def test_cancelled_members_do_not_take_the_others_with_them(mariadb_url: str) -> None:
    async with awaited(mariadb_url, pool_size=2) as store:
        await store.perform(claim())
        for turn in range(40):
            ops = [claim(number) for number in range(30)]
            tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
            for _ in range(turn % 6):  # cancelled at a different point each time
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(reply) for reply in replies[1::2]} == {Claimed}
            assert {type(reply) for reply in replies[::2]} <= {asyncio.CancelledError, Claimed}


async def test_a_locked_record_holds_up_no_other_of_its_batch(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(40)]
        await together(store, ops)
        with row_locked(mariadb, mariadb_url, ops[20].identity):
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            locked = tasks.pop(20)
            # All of this is done while it is still locked.
            assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Applied}
            assert not locked.done()
            # Whoever comes now is not held up at all, nor by another try at the same record.
            again = asyncio.ensure_future(store.perform(complete(ops[20])))
            for _ in range(5):
                await together(store, more := [claim(number) for number in range(10)])
                await together(store, [complete(op) for op in more])
        assert isinstance(await locked, Applied)
        assert isinstance(await again, Applied)


async def test_a_key_claimed_in_anothers_open_transaction_holds_up_no_other_of_its_batch(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    async with awaited(mariadb_url) as store:
        await store.perform(seed := claim())
        ops = [claim(number) for number in range(40)]
        with uncommitted(mariadb, mariadb_url, seed, ops[20]):
            tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
            waiting = tasks.pop(20)
            assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Claimed}
            assert not waiting.done()
        assert isinstance(await waiting, Claimed)  # the other rolled back


@contextmanager
def uncommitted(server: MariadbServer, url: str, there: Claim, op: Claim) -> Iterator[Any]:
    """Somebody takes the same key in a transaction of his own, and takes his time."""
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        changed = cursor.execute(
            f"UPDATE semel_record SET identity = x'{op.identity.hex()}' "
            f"WHERE identity = x'{there.identity.hex()}'"
        )
        assert changed == 1
        yield connection
        connection.rollback()


async def test_waiting_is_as_patient_as_ever_after_a_batch_was_in_a_hurry(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """On the one connection there is: after a batch, and after one that met a lock."""
    async with awaited(mariadb_url, pool_size=1) as store:
        ops = [claim(number) for number in range(20)]
        await together(store, ops)
        with row_locked(mariadb, mariadb_url, ops[0].identity):
            alone = asyncio.ensure_future(store.perform(Renew(ops[0].identity, ops[0].fence, DAY)))
            with admin(mariadb, mariadb_url) as ask:
                await asyncio.to_thread(until, lambda: ask(WAITING) == 1)
        assert isinstance(await alone, Applied)
        with row_locked(mariadb, mariadb_url, ops[3].identity):
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            with admin(mariadb, mariadb_url) as ask:
                await asyncio.to_thread(until, lambda: ask(WAITING) == 1)
        assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Applied}


# ── what a batch says, and to whom ────────────────────────────────────────────────────────────────


def batch_of(ops: Sequence[StoreOperation[Any]]) -> Batch[Note]:
    batch = queued(KINDS, ops).take()
    assert len(batch) == len(ops)
    return batch


def sent(batch: Batch[Note]) -> Statement:
    statement = batch.statement()
    assert statement is not None
    return statement


def test_a_batch_asks_again_when_a_rival_came_first_and_gives_up_in_the_end() -> None:
    said = exchange(sent(batch_of([claim(), claim()])))
    first = next(said)
    assert "SET innodb_lock_wait_timeout = @semel_hurry" in first
    for _ in range(2):
        assert said.throw(MysqlFault("a rival", code=DUPLICATE, broken=False)) == PATIENT
        assert said.send([]) == first
    said.throw(MysqlFault("a rival", code=DUPLICATE, broken=False))
    with pytest.raises(StopIteration) as ended:
        said.send([])
    assert ended.value.value == []


PATIENT = "SET innodb_lock_wait_timeout = @semel_patience"


@pytest.mark.parametrize("broken", [True, False])
def test_only_a_connection_that_is_patient_again_is_used_again(broken: bool) -> None:
    said = exchange(sent(batch_of([claim(), claim()])))
    next(said)
    assert said.throw(MysqlFault("locked", code=WAITED)) == PATIENT
    fault = MysqlFault("the server is gone", doubt=True, tries=2)
    with pytest.raises(MysqlFault) as told:
        said.throw(fault) if broken else said.send([])
    assert told.value.broken is broken


@pytest.mark.parametrize("op", [claim(), complete(claim())], ids=["claim", "complete"])
def test_what_fails_after_the_write_is_in_doubt_and_ends_the_connection(
    op: StoreOperation[Any],
) -> None:
    """The session is still in a hurry then, and only what follows the write tells it so."""
    said = exchange(sent(batch_of([op])))
    before_the_look = next(said).count(";") - 1
    fault = MysqlFault("a node that was not the first", code=1213, broken=False, tries=5)
    fault.after = before_the_look
    with pytest.raises(MysqlFault) as told:
        said.throw(fault)
    assert (told.value.doubt, told.value.broken) == (True, True)


@pytest.mark.parametrize(
    "fault",
    [
        MysqlFault("locked", code=WAITED, broken=False),
        MysqlFault("so long", code=TOO_LARGE, broken=False),
        MysqlFault("hung up", doubt=True, tries=2),
    ],
    ids=str,
)
def test_what_may_be_the_fault_of_one_member_sends_each_alone(fault: MysqlFault) -> None:
    batch = batch_of([claim(), claim()])
    batch.fail(fault, store_error)
    assert [job.told for job in batch] == [SendAlone(doubt=fault.doubt)] * 2


@pytest.mark.parametrize("kind", [Claim, Complete])
def test_a_batch_takes_its_locks_in_the_order_of_identities(
    mariadb: MariadbServer, mariadb_url: str, kind: type[StoreOperation[Any]]
) -> None:
    """Seen while it waits: what comes before is locked, what comes after is not."""
    backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
    backend.migrate()
    first, second, third = sorted((claim() for _ in range(3)), key=lambda op: op.identity)
    seed, arriving = claim(), [third, second, first]
    backend.blocking().perform(seed)
    asked: list[Any] = arriving
    held = uncommitted(mariadb, mariadb_url, seed, second)
    if kind is Complete:
        for op in arriving:
            backend.blocking().perform(op)
        asked = [complete(op) for op in arriving]
        held = uncommitted(mariadb, mariadb_url, second, claim())
    with held as holder, ThreadPoolExecutor(1) as threads, admin(mariadb, mariadb_url) as ask:
        running = threads.submit(patiently, mariadb, mariadb_url, batch_of(asked))
        until(lambda: ask(WAITING) == 1)
        assert not is_free(mariadb, mariadb_url, first, kind)
        assert is_free(mariadb, mariadb_url, third, kind)
        holder.rollback()
        assert running.result(PATIENCE) == 3
    backend.close()


def patiently(server: MariadbServer, url: str, batch: Batch[Note]) -> int:
    """The statements of a batch as they are, by somebody who waits."""
    statement = sent(batch)
    parts = dialect("mysql").queries[statement.name].parts
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        for part in parts:
            cursor.execute(packet([part], statement.params, "", ""))
        return len(cursor.fetchall())


def is_free(server: MariadbServer, url: str, op: Claim, kind: type[StoreOperation[Any]]) -> bool:
    """Whether nobody holds a lock on the record, or has put one where it would be."""
    locking = f"SELECT 1 FROM semel_record WHERE identity = x'{op.identity.hex()}' FOR UPDATE"
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("START TRANSACTION")
        found = cursor.execute(f"{locking} SKIP LOCKED")
        if kind is Complete:
            return bool(found)
        cursor.execute("SET innodb_lock_wait_timeout = 0")
        try:
            cursor.execute(locking)
        except pymysql.OperationalError as error:
            return bool(error.args[0] != WAITED)
        return True


@pytest.mark.parametrize("there", [3, 20_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_finds_its_records_by_the_primary_key(
    mariadb: MariadbServer, mariadb_url: str, kind: type[StoreOperation[Any]], there: int
) -> None:
    MysqlBackend(mariadb_url, timeout=PATIENCE).migrate()
    with admin(mariadb, mariadb_url) as ask:
        ask(FILL.format(there))
        ask("ANALYZE TABLE semel_record")
    ops: dict[type, list[StoreOperation[Any]]] = {Claim: [claim() for _ in range(MAX_ROWS)]}
    ops[Complete] = [complete(claim()) for _ in range(MAX_ROWS)]
    ops[Renew] = [renew(claim()) for _ in range(MAX_ROWS)]
    ops[Read] = [Read(claim().identity) for _ in range(MAX_ROWS)]
    statement = sent(batch_of(ops[kind]))
    with mariadb.connect(database_of(mariadb_url)) as connection, connection.cursor() as cursor:
        for part in dialect("mysql").queries[statement.name].parts:
            text = packet([part.replace("INTO @semel_found", "")], statement.params, "", "")
            cursor.execute(f"EXPLAIN {text}")
            for _, _, table, how, _, key, *_ in cursor.fetchall():
                # A look may read a small table as a whole, for it locks nothing.
                small = there == 3 and not part.startswith("UPDATE")
                assert small or table == "given" or (how, key) == ("range", "PRIMARY")


FILL = (
    "INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, method, path, "
    "`key`, on_lapse, terms, created_at, leased_until, duty, due_at) SELECT UNHEX(SHA2(seq, 256)), "
    "'in_progress', UNHEX(MD5(seq)), 'v1', '', '', '', '', '', 'unknown', 0, 0, 0, 'lease', 0 "
    "FROM seq_1_to_{}"
)


# ── the connection breaks ─────────────────────────────────────────────────────────────────────────


async def test_a_connection_killed_in_a_batch_is_survived_and_all_is_done_once(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """A gate keeps the first change of one record from ending by itself."""
    stuck = f"{KILL} AND state = 'User lock'"
    async with awaited(mariadb_url) as store:
        ops = [claim(number) for number in range(30)]
        await together(store, ops)
        with admin(mariadb, mariadb_url) as ask:
            assert ask("SELECT GET_LOCK('gate', 0)") == 1
            ask(
                "CREATE TRIGGER gate BEFORE UPDATE ON semel_record FOR EACH ROW "
                f"IF NEW.identity = x'{ops[3].identity.hex()}' THEN "
                "SET @passed = GET_LOCK('gate', 3600) AND RELEASE_LOCK('gate'); END IF"
            )
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            victim = await asyncio.to_thread(until, lambda: ask(stuck))
            ask(f"KILL {victim}")
            await asyncio.to_thread(until, lambda: ask(stuck) not in (None, victim))  # once more
            ask("SELECT RELEASE_LOCK('gate')")
            assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Applied}
            done = "SELECT count(*) FROM semel_record WHERE state = 'completed'"
            assert ask(done) == len(ops)


@pytest.mark.proof
async def test_connections_killed_all_the_time_lose_and_double_nothing(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    """Claims and completions under fire: an answer may be missing, never wrong."""
    async with awaited(mariadb_url) as store:
        ended = threading.Event()

        def fire() -> None:
            with mariadb.connect(database_of(mariadb_url)) as connection:
                while not ended.wait(0.05):
                    with connection.cursor() as cursor:
                        cursor.execute(KILL)
                        for (number,) in cursor.fetchall():
                            with suppress(Exception):  # it may be gone by itself
                                cursor.execute(f"KILL {number}")

        async def pay(number: int) -> tuple[Claim, bytes] | None:
            op, body = claim(number), secrets.token_bytes(50)
            with suppress(StoreUnavailable):
                assert isinstance(await store.perform(op), Claimed)
                assert isinstance(await store.perform(complete(op, body)), Applied)
                return op, body
            return None

        firing = asyncio.ensure_future(asyncio.to_thread(fire))
        acknowledged: list[tuple[Claim, bytes]] = []
        floor = {"acknowledged": 100}
        for _ in rounds(15, lambda: missing({"acknowledged": len(acknowledged)}, floor)):
            paid = await asyncio.gather(*map(pay, range(64)))
            acknowledged.extend(each for each in paid if each is not None)
        ended.set()
        await firing
        found = await together(store, [Read(op.identity) for op, _ in acknowledged])
        for (op, body), reply in zip(acknowledged, found, strict=True):
            assert isinstance(reply, Found)
            assert (reply.record.fence, reply.record.snapshot) == (op.fence, body)


async def test_a_server_that_is_gone_is_told_to_each_member_in_time(
    own_server: MariadbServer,
) -> None:
    async with awaited(own_server.url_of("shop")) as store:
        await together(store, [claim(number) for number in range(30)])
        await asyncio.to_thread(own_server.stop)
        began = monotonic()
        errors = await outcomes(store, [claim(number) for number in range(MANY)])
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert {error.applied for error in errors} == {False}
        assert len(set(map(id, errors))) == MANY
        assert monotonic() - began < PATIENCE / 2  # nobody waited for the time limit
        await asyncio.to_thread(own_server.start)
        replies = await together(store, [claim(number) for number in range(MANY)])
        assert {type(reply) for reply in replies} == {Claimed}


async def test_a_missing_schema_is_told_to_each(mariadb_url: str) -> None:
    backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
    errors = await outcomes(backend.awaited(), [claim() for _ in range(10)])
    assert {type(error) for error in errors} == {SchemaError}
    await backend.aclose()


async def test_closing_waits_for_what_is_queued(mariadb_url: str) -> None:
    async with awaited(mariadb_url):
        backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
        tasks = [asyncio.ensure_future(backend.awaited().perform(claim())) for _ in range(300)]
        await asyncio.sleep(0)
        await backend.aclose()
        assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Claimed}


# ── several processes ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
async def test_two_processes_that_want_the_same_keys_in_opposite_order_do_not_deadlock(
    own_server: MariadbServer,
) -> None:
    url = own_server.url_of("shop")
    await asyncio.to_thread(MysqlBackend(url).migrate)
    ops = [claim(number) for number in range(1000)]
    opposite = [op for at in range(0, 1000, 50) for op in reversed(ops[at : at + 50])]
    with admin(own_server, url) as ask:
        before = deadlocks(ask)
        won = await asyncio.to_thread(raced, url, ops, opposite)
        assert Counter(won) == Counter(op.identity for op in ops)
        assert deadlocks(ask) == before


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


def test_threads_travel_together_and_each_is_told_its_own(
    own_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    with threaded(own_server.url_of("shop")) as threads:
        ops = [claim(number) for number in range(MANY)]
        bodies = [secrets.token_bytes(1 + number * 37) for number in range(MANY)]
        before = commits(own_server)
        assert {type(reply) for reply in threads.outcomes(ops)} == {Claimed}
        threads.outcomes([complete(*each) for each in zip(ops, bodies, strict=True)])
        assert commits(own_server) - before <= 2 * (MANY / MAX_ROWS + 2)
        replayed = threads.outcomes([rival(op) for op in ops])
        read = threads.outcomes([Read(op.identity) for op in ops])
    for op, body, *found in zip(ops, bodies, replayed, read, strict=True):
        for reply in found:
            assert isinstance(reply, Found)
            assert (reply.record.identity, reply.record.fence) == (op.identity, op.fence)
            assert reply.record.snapshot == body


def test_among_threads_a_locked_record_holds_up_no_other_of_its_batch(
    mariadb: MariadbServer, mariadb_url: str
) -> None:
    with threaded(mariadb_url) as threads:
        ops = [claim(number) for number in range(30)]
        threads.outcomes(ops)
        with row_locked(mariadb, mariadb_url, ops[10].identity):
            futures = threads.held([complete(op) for op in ops])
            locked = futures.pop(10)
            assert {type(future.result(PATIENCE / 2)) for future in futures} == {Applied}
            assert not locked.done()
        assert isinstance(locked.result(), Applied)
