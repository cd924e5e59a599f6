"""How operations are put together, and what befalls them: without a server, for every store."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from semel.core.frozen import replace
from semel.core.operations.requests import Claim, Complete, StoreOperation
from semel.core.records import Origin
from semel.errors import StoreCorrupt, StoreUnavailable
from semel.stores.mysql import errors as mysql_faults
from semel.stores.mysql import values as mysql_kinds
from semel.stores.postgres import errors as postgres_faults
from semel.stores.postgres import values as postgres_kinds
from semel.stores.sql.batches import (
    MAX_BATCHED,
    MAX_ROWS,
    BatchJob,
    BatchKind,
    BatchQueue,
    SendAlone,
)
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import written
from semel.stores.sql.statements import Statement, StatementFault, ToStoreError, retried
from tests.stores.together import claim, complete, rival

Kinds = Mapping[type[StoreOperation[Any]], BatchKind]


@pytest.fixture(params=[postgres_kinds, mysql_kinds], ids=["postgres", "mysql"])
def kinds(request: pytest.FixtureRequest) -> Kinds:
    found: Kinds = request.param.KINDS
    return found


@pytest.fixture(params=[postgres_faults, mysql_faults], ids=["postgres", "mysql"])
def store_error(request: pytest.FixtureRequest) -> ToStoreError:
    found: ToStoreError = request.param.store_error
    return found


class Note(BatchJob):
    """A job that keeps what it was told."""

    __slots__ = ("told",)
    told: object

    def abandoned(self) -> bool:
        return hasattr(self, "told")

    def tell(self, message: object) -> None:
        self.told = message


def statement_for(kind: BatchKind, ops: Sequence[Any]) -> Statement:
    return Statement(kind.statement, kind.columns(ops))


def queued(kinds: Kinds, ops: Sequence[StoreOperation[Any]]) -> BatchQueue[Note]:
    queue = BatchQueue[Note](kinds[type(ops[0])])
    for op in ops:
        queue.add(Note(op, 1.0, queue.kind.size(op)))
    return queue


def test_a_batch_has_one_row_for_each_identity_and_a_bounded_number_of_them(kinds: Kinds) -> None:
    ops = [claim() for _ in range(MAX_ROWS + 10)]
    queue = queued(kinds, [op for op in ops for _ in range(3)])
    first, second = queue.take(), queue.take()
    assert not queue
    assert len({job.identity for job in first.jobs}) == MAX_ROWS
    assert {job.identity for job in second.jobs} >= {op.identity for op in ops[MAX_ROWS:]}
    ordered = sorted(ops[:MAX_ROWS], key=lambda op: op.identity)
    assert first.statement() == statement_for(kinds[Claim], ordered)


def test_a_batch_is_in_the_order_of_identities(kinds: Kinds) -> None:
    ops = [complete(claim()) for _ in range(MAX_ROWS)]
    ordered = sorted(ops, key=lambda op: op.identity)
    arriving = queued(kinds, ops).take().statement()
    assert arriving == statement_for(kinds[Complete], ordered)
    assert arriving != statement_for(kinds[Complete], ordered[::-1])


def test_two_completions_of_one_record_never_share_a_batch(kinds: Kinds) -> None:
    op = claim()
    queue = queued(kinds, [complete(op), complete(rival(op)), complete(claim())])
    assert [len(queue.take().jobs), len(queue.take().jobs), len(queue.take().jobs)] == [2, 1, 0]


def test_a_batch_has_a_bounded_weight_and_skips_who_has_left(kinds: Kinds) -> None:
    ops = [complete(claim(), bytes(MAX_BATCHED)) for _ in range(MAX_ROWS)]
    queue = queued(kinds, ops)
    sizes: list[int] = []
    while batch := queue.take().jobs:
        sizes.append(len(batch))
    assert sum(sizes) == MAX_ROWS
    assert 1 < max(sizes) <= 16
    queue = queued(kinds, ops[:4])
    for job in list(queue._jobs)[1:3]:
        job.tell(SendAlone())
    assert [job.op for job in queue.take().jobs] == [ops[0], ops[3]]
    assert len(queue.take().jobs) == 0


def test_columns_made_for_all_at_once_say_what_each_would_say_alone(kinds: Kinds) -> None:
    """Also where one text needs an escape, and all the others do not."""
    odd = "back\\x00slash", "nul\0", "é", "\ud800", "plain"
    ops = [replace(claim(), origin=Origin(text, text, text, text)) for text in odd]
    done = [complete(op, resource=op.origin.key) for op in ops]
    assert_said_alike(kinds[Claim], ops)
    assert_said_alike(kinds[Complete], [complete(claim()), *done])


def assert_said_alike(kind: BatchKind, ops: Sequence[Any]) -> None:
    for name, column in kind.columns(ops).items():
        alone = [kind.columns([op])[name] for op in ops]
        if isinstance(column, bytes):  # past the header of the array
            assert column[20:] == b"".join(bytes(each)[20:] for each in cast("list[bytes]", alone))
        else:
            assert values(column) == ", ".join(map(values, alone))


def values(column: object) -> str:
    """Of a JSON array, what is in it."""
    return str(column).removeprefix("'[").removesuffix("]'")


def test_who_cannot_be_written_goes_alone_and_spoils_no_other(kinds: Kinds) -> None:
    good, bad = [claim(), claim()], replace(claim(), fingerprint="nul \0")
    batch = queued(kinds, [good[0], bad, rival(bad), good[1]]).take()
    unwritable = [job for job in batch.jobs if job.identity == bad.identity]
    ordered = sorted(good, key=lambda op: op.identity)
    assert batch.statement() == statement_for(kinds[Claim], ordered)
    assert [job.told for job in unwritable] == [SendAlone(doubt=False)] * 2
    assert not any(job.abandoned() for job in batch.jobs)
    assert len(batch.jobs) == 2
    assert queued(kinds, [bad, bad]).take().statement() is None


@pytest.mark.parametrize(("taken", "applied"), [(False, False), (True, None)])
def test_who_was_in_a_batch_may_have_been_sent_and_who_was_not_was_not(
    store_error: ToStoreError, taken: bool, applied: bool | None
) -> None:
    queue = queued(postgres_kinds.KINDS, [claim()])
    job = next(iter(queue._jobs))
    if taken:
        queue.take()
    job.expire(store_error)
    assert isinstance(job.told, StoreUnavailable)
    assert job.told.applied is applied


def test_a_doubt_from_the_batch_stays_when_going_alone_fails_surely(
    store_error: ToStoreError,
) -> None:
    """Sent, connection lost, server gone: nobody may say that it surely did not happen."""
    batch = queued(postgres_kinds.KINDS, [claim(), claim()]).take()
    batch.fail(StatementFault("the server hung up", doubt=True, tries=2), store_error)
    assert [job.told for job in batch.jobs] == [SendAlone(doubt=True)] * 2
    alone = retried(plan(claim()), store_error, doubt=True)
    next(alone)
    with pytest.raises(StoreUnavailable) as unavailable:
        alone.throw(StatementFault("cannot connect"))
    assert unavailable.value.applied is None


def test_when_no_connection_is_to_be_had_each_is_told_so_and_nobody_tries_alone(
    store_error: ToStoreError,
) -> None:
    batch = queued(postgres_kinds.KINDS, [claim(), claim()]).take()
    batch.fail(StatementFault("cannot connect"), store_error)
    errors = [job.told for job in batch.jobs]
    assert [type(error) for error in errors] == [StoreUnavailable] * 2
    assert errors[0] is not errors[1]


NOW = 10**15


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("until", [NOW - 1, NOW, NOW + 1])
def test_a_claim_in_a_batch_is_told_what_it_would_be_told_alone(
    kinds: Kinds, own: bool, until: int
) -> None:
    op = claim()
    fence = op.fence if own else rival(op).fence
    held = (op.identity, 2, fence, "v1:", b"", 1, 1, until, *[None] * 5, NOW)
    kept = (until, until + 1, b"answer", None, None, NOW)
    done = (op.identity, 3, fence, "v1:", b"", 1, 1, None, *kept)
    for row in (held, done):
        steps = plan(op)
        next(steps)
        with pytest.raises(StopIteration) as alone:
            steps.send([row])
        assert kinds[Claim].reply(op, row) == alone.value.value


@pytest.mark.parametrize(
    "row",
    [
        (3, None, NOW + 1, NOW),
        (3, NOW, NOW + 1, NOW),
        (2, NOW + 1, None, NOW),
    ],
)
def test_a_write_in_a_batch_is_told_what_it_would_be_told_alone(
    kinds: Kinds, row: tuple[object, ...]
) -> None:
    op = complete(claim())
    assert kinds[Complete].reply(op, (op.identity, *row)) == written([row])


@pytest.mark.parametrize("row", [(3, None, "soon", NOW), (9, None, None, NOW)])
def test_what_cannot_be_true_of_a_write_is_no_answer(kinds: Kinds, row: tuple[object, ...]) -> None:
    op = complete(claim())
    with pytest.raises(StoreCorrupt):
        kinds[Complete].reply(op, (op.identity, *row))


def test_a_held_record_without_its_times_is_no_answer(kinds: Kinds) -> None:
    op = claim()
    row = (op.identity, 2, op.fence, "v1:", b"", 1, 1, None, *[None] * 5, NOW)
    with pytest.raises(StoreCorrupt):
        kinds[Claim].reply(op, row)
