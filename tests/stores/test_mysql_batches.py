"""Operations that travel together: what is true in MariaDB and MySQL alone."""

import asyncio
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from semel.core.frozen import replace
from semel.core.operations import Applied, Claim, Complete, Read, Renew, StoreOperation
from semel.core.records import Identity
from semel.stores.mysql.errors import DUPLICATE, TOO_LARGE, WAITED, MysqlFault, store_error
from semel.stores.mysql.protocol import exchange, packet
from semel.stores.mysql.values import KINDS
from semel.stores.sql.batches import MAX_ROWS, Batch, SendAlone
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Statement
from tests.databases import numbers
from tests.servers import MariadbServer
from tests.stores.dialects import Mysql
from tests.stores.test_batches import Note, queued
from tests.stores.together import DAY, awaited, claim, complete, renew, together
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(mariadb: MariadbServer, mariadb_url: str) -> Mysql:
    return Mysql(mariadb, mariadb_url)


async def test_a_batch_writes_what_each_operation_would_have_written_alone(
    database: Mysql,
) -> None:
    """Every column; of the times, how far they are apart."""
    async with awaited(database.url) as store:
        alone = replace(claim(7), request=b"request", fresh_until=2**60)
        many = [replace(alone, identity=Identity(secrets.token_bytes(32))) for _ in range(20)]
        await store.perform(alone)
        await together(store, many)
        first = rows_of(database, [alone, *many])
        assert first[1:] == first[:1] * 20
        finish = replace(complete(alone), resource="invoice", tombstone=5 * DAY)
        await store.perform(finish)
        await together(store, [replace(finish, identity=op.identity) for op in many])
        last = rows_of(database, [alone, *many])
        assert last[1:] == last[:1] * 20
        assert last != first


TIMES = ("identity", "created_at", "leased_until", "expires_at", "forget_at", "due_at", "fence")


def rows_of(database: Mysql, ops: Sequence[Claim]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    with database.admin() as ask:
        for op in ops:
            row = ask.row(f"SELECT * {database.where(op.identity)}")
            row["leased for"] = row["leased_until"] and row["leased_until"] - row["created_at"]
            row["due for"] = row["due_at"] - (row["leased_until"] or row["due_at"])
            row["forgotten"] = row["forget_at"] and row["forget_at"] - row["due_at"]
            told.append({name: row[name] for name in row if name not in TIMES})
    return told


async def test_waiting_is_as_patient_as_ever_after_a_batch_was_in_a_hurry(
    database: Mysql,
) -> None:
    """On the one connection there is: after a batch, and after one that met a lock."""
    async with awaited(database.url, pool_size=1) as store:
        ops = [claim(number) for number in range(20)]
        await together(store, ops)
        with database.row_locked(ops[0].identity), database.admin() as ask:
            alone = asyncio.ensure_future(store.perform(Renew(ops[0].identity, ops[0].fence, DAY)))
            await asyncio.to_thread(until, lambda: len(database.waiting(ask)) == 1)
        assert isinstance(await alone, Applied)
        with database.row_locked(ops[3].identity), database.admin() as ask:
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            await asyncio.to_thread(until, lambda: len(database.waiting(ask)) == 1)
        assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Applied}


# ── what a batch says, and to whom ────────────────────────────────────────────────────────────────


def batch_of(ops: Sequence[StoreOperation[Any]]) -> Batch[Note]:
    batch = queued(KINDS, ops).take()
    assert len(batch.jobs) == len(ops)
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
    assert [job.told for job in batch.jobs] == [SendAlone(doubt=fault.doubt)] * 2


@pytest.mark.parametrize("kind", [Claim, Complete])
def test_a_batch_takes_its_locks_in_the_order_of_identities(
    database: Mysql, kind: type[StoreOperation[Any]]
) -> None:
    """Seen while it waits: what comes before is locked, what comes after is not."""
    first, second, third = sorted((claim() for _ in range(3)), key=lambda op: op.identity)
    seed, arriving = claim(), [third, second, first]
    with database.opened() as backend:
        backend.blocking().perform(seed)
        asked: list[Any] = arriving
        held = database.uncommitted(seed, second)
        if kind is Complete:
            for op in arriving:
                backend.blocking().perform(op)
            asked = [complete(op) for op in arriving]
            held = database.uncommitted(second, claim())
        with held as holder, ThreadPoolExecutor(1) as threads, database.admin() as ask:
            running = threads.submit(patiently, database, batch_of(asked))
            until(lambda: len(database.waiting(ask)) == 1)
            assert not is_free(database, first, kind)
            assert is_free(database, third, kind)
            holder("ROLLBACK")
            assert running.result(PATIENCE) == 3


def patiently(database: Mysql, batch: Batch[Note]) -> int:
    """The statements of a batch as they are, by somebody who waits."""
    statement = sent(batch)
    parts = dialect("mysql").queries[statement.name].parts
    with database.admin() as ask:
        ask("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        rows = [ask.rows(packet([part], statement.params, "", "")) for part in parts]
    return len(rows[-1])


def is_free(database: Mysql, op: Claim, kind: type[StoreOperation[Any]]) -> bool:
    """Whether nobody holds a lock on the record, or has put one where it would be."""
    locking = f"SELECT 1 {database.where(op.identity)} FOR UPDATE"
    with database.transaction() as ask:
        found = ask(f"{locking} SKIP LOCKED")
        if kind is Complete:
            return bool(found)
        ask("SET innodb_lock_wait_timeout = 0")
        try:
            ask(locking)
        except pymysql.OperationalError as error:
            return bool(error.args[0] != WAITED)
        return True


@pytest.mark.parametrize("there", [3, 20_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_finds_its_records_by_the_primary_key(
    database: Mysql, kind: type[StoreOperation[Any]], there: int
) -> None:
    ops: dict[type, list[StoreOperation[Any]]] = {Claim: [claim() for _ in range(MAX_ROWS)]}
    ops[Complete] = [complete(claim()) for _ in range(MAX_ROWS)]
    ops[Renew] = [renew(claim()) for _ in range(MAX_ROWS)]
    ops[Read] = [Read(claim().identity) for _ in range(MAX_ROWS)]
    statement = sent(batch_of(ops[kind]))
    with database.opened(), database.admin() as ask:
        ask(FILL.format(numbers(there)))
        ask("ANALYZE TABLE semel_record")
        for part in dialect("mysql").queries[statement.name].parts:
            text = packet([part.replace("INTO @semel_found", "")], statement.params, "", "")
            for table, how, key in ask.plan(text):
                # A look may read a small table as a whole, for it locks nothing.
                small = there == 3 and not part.startswith("UPDATE")
                assert small or table == "given" or (how, key) == ("range", "PRIMARY")


FILL = (
    "INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, method, path, "
    "`key`, on_lapse, terms, created_at, leased_until, duty, due_at) SELECT UNHEX(SHA2(seq, 256)), "
    "2, UNHEX(LEFT(SHA2(seq, 256), 32)), 'v1', '', '', '', '', '', 1, 0, 0, 0, 1, 0 "
    "FROM {}"
)
