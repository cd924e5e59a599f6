"""What must always hold: one function for each promise, checked at every step.

The rules are written down here a second time, from the words and not from `core/states.py`: a
mistake in the one table would otherwise prove itself.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final

from semel.core import operations as ops
from semel.core.exchange.answers import Answer, Outcome
from semel.core.records import Case, OnLapse, State
from semel.core.stored import snapshot
from semel.stores.memory.rows import Row
from tests.proof.explorer.handlers import MADE


class Violation(Exception):
    """A promise was broken."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
        self.number = promise.partition(" ")[0]


@dataclass(frozen=True)
class Change:
    """One record was changed by one operation; ``own``: of the identity the asker has."""

    before: Row | None
    after: Row | None
    op: Any
    now: int
    burnt: frozenset[bytes]
    own: bool
    alike: bool
    """The asker's request means what the record's did."""
    epoch: int
    effects: int
    """In this epoch, so far."""


def demand(promise: str, holds: bool, what: str) -> None:
    if not holds:
        raise Violation(promise, what)


# ── at every write ────────────────────────────────────────────────────────────────────────────────

HOLDING: Final = (ops.Complete, ops.Release, ops.Suspend, ops.Renew, ops.Advance, ops.Open)
FINAL: Final = (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)

_NONE, _IN, _DONE = None, State.IN_PROGRESS, State.COMPLETED
_FAILED, _UNKNOWN = State.FAILED_RETRYABLE, State.UNKNOWN

WAYS: Final[dict[tuple[State | None, State | None], tuple[type, ...]]] = {
    (_NONE, _IN): (ops.Claim,),
    (_NONE, State.PENDING): (ops.Accept,),
    (_NONE, _DONE): (ops.Commit,),
    (_NONE, _UNKNOWN): (ops.Commit,),
    (State.PENDING, _IN): (ops.Take,),
    (State.PENDING, _DONE): (ops.Abandon,),
    (_IN, _IN): (ops.Renew, ops.Advance, ops.Open, ops.Resume),
    (_IN, _DONE): (ops.Complete,),
    (_IN, _FAILED): (ops.Release, ops.Lapse, ops.Sweep),
    (_IN, State.PENDING): (ops.Release, ops.Lapse, ops.Sweep),
    (_IN, _UNKNOWN): (ops.Suspend, ops.Lapse, ops.Sweep),
    (_UNKNOWN, _DONE): (ops.Complete, ops.SettleHappened),
    (_UNKNOWN, _FAILED): (ops.SettleAbsent,),
    (_UNKNOWN, _IN): (ops.SettleCall,),
    (_UNKNOWN, _UNKNOWN): (ops.Inquire,),
    (_FAILED, _IN): (ops.Retake,),
    (_FAILED, _DONE): (ops.Commit,),
    (_FAILED, _UNKNOWN): (ops.Commit,),
    (_DONE, State.EXPIRED): (ops.Reap,),
    (_DONE, _NONE): (ops.Forget, ops.Reap, ops.Evict),
    (_FAILED, _NONE): (ops.Forget, ops.Reap, ops.Evict),
    (State.EXPIRED, _NONE): (ops.Forget, ops.Reap, ops.Evict),
}
"""From where to where, and by what; nothing else ever changes a state."""


def p4_a_stale_holder_is_refused(change: Change) -> None:
    before, op = change.before, change.op
    if isinstance(op, HOLDING):
        held = before is not None and before.fence == op.fence
        demand("4 stale holders are refused", held, f"{type(op).__name__} without the fence")
        revived = (
            isinstance(op, ops.Renew) and before is not None and before.record.lapsed(change.now)
        )
        demand("4 stale holders are refused", not revived, "a lease that was past was revived")
    if change.after is not None:
        again = change.after.fence in change.burnt
        demand("4 stale holders are refused", not again, "a fence came back from the dead")


def p4_settling_and_claiming_burn_the_fence(change: Change) -> None:
    if change.before is None or change.after is None:
        return
    burns = isinstance(
        change.op,
        ops.SettleHappened | ops.SettleAbsent | ops.SettleCall | ops.Retake | ops.Resume | ops.Take,
    )
    same = change.before.fence == change.after.fence
    name = type(change.op).__name__
    demand("4 stale holders are refused", not (burns and same), f"{name} left the old fence alive")


def p5_unsettled_never_becomes_free_by_time(change: Change) -> None:
    source = None if change.before is None else change.before.state
    target = None if change.after is None else change.after.state
    if source is target and source not in (State.IN_PROGRESS, State.UNKNOWN):
        demand("5 only evidence settles", source in FINAL, "a pending record was changed")
        return
    name = type(change.op).__name__
    allowed = isinstance(change.op, WAYS.get((source, target), ()))
    demand("5 only evidence settles", allowed, f"{name} led from {source} to {target}")
    if change.before is not None and isinstance(change.op, ops.Lapse | ops.Sweep | ops.Resume):
        record = change.before.record
        demand("5 only evidence settles", record.lapsed(change.now), f"{name} of a live lease")
        told = OnLapse.RESUME if isinstance(change.op, ops.Resume) else OnLapse.RELEASE
        freed = target is not State.UNKNOWN
        demand("5 only evidence settles", not freed or record.on_lapse is told, f"{name} freed it")


def p6_only_final_records_are_purged(change: Change) -> None:
    if change.after is not None or change.before is None or isinstance(change.op, ops.Evict):
        return
    record = change.before.record
    demand("6 only final records go", record.state in FINAL, f"{record.state} was purged")
    over = record.forget_at is not None and record.forget_at <= change.now
    demand("6 only final records go", over, "purged before its time")


def p7_nobody_writes_across_scopes(change: Change) -> None:
    demand("7 scopes are apart", change.own, "a record of another scope was changed")


def p9_a_mismatch_changes_nothing(change: Change) -> None:
    theirs = change.before is not None and not change.alike
    gone = isinstance(change.op, ops.Forget)
    demand("9 a mismatch changes nothing", not theirs or gone, f"{type(change.op).__name__}")


def p1_what_is_freed_had_no_effect(change: Change) -> None:
    """Whoever frees a key says that nothing happened: then nothing may have."""
    if change.after is None or change.before is None:
        return
    unsettled = change.before.state in (State.IN_PROGRESS, State.UNKNOWN)
    # What waits with its journal goes on from there; what is free may be forgotten with it.
    waits = change.after.state is State.PENDING and change.after.journal is not None
    freed = change.after.state in (State.FAILED_RETRYABLE, State.PENDING) and not waits
    if unsettled and freed:
        name = type(change.op).__name__
        demand("1 one effect", not change.effects, f"{name} freed a key whose effect is there")


AT_WRITES: Final = (
    p4_a_stale_holder_is_refused,
    p4_settling_and_claiming_burn_the_fence,
    p5_unsettled_never_becomes_free_by_time,
    p6_only_final_records_are_purged,
    p7_nobody_writes_across_scopes,
    p9_a_mismatch_changes_nothing,
    p1_what_is_freed_had_no_effect,
)


def check_write(change: Change) -> None:
    for promise in AT_WRITES:
        promise(change)


# ── at other moments ──────────────────────────────────────────────────────────────────────────────


def p1_one_effect(count: int) -> None:
    demand("1 one effect", count <= 1, f"{count} effects in one epoch")


def p2_an_answer_never_changes(kept: list[int], told: int) -> None:
    demand("2 answers are equal", not kept or kept == [told], "two answers were kept in one epoch")


def p3_sent_after_it_is_durable(answer: Answer, kept: list[bytes]) -> None:
    """All that is called final, from the run itself or from the record, is on record by then, and
    every success whatever it is called. (202 is none: it says where to ask.)

    With `p2_an_answer_never_changes` two of them in one epoch are equal in every byte.
    """
    response = answer.response
    if response is None:
        return
    success = 200 <= response.status < 300 and response.status != 202
    if not success and answer.outcome not in (Outcome.EXECUTED, Outcome.REPLAYED):
        return
    final = (response.status, response.body)
    stored = [snapshot.decode(blob) for blob in kept]
    same = [each for each in stored if (each.status, each.body) == final]
    demand("3 durable before sent", bool(same), f"{response.status} was sent and is not on record")
    headers = any(set(each.headers) <= set(response.headers) for each in same)
    demand("2 answers are equal", headers, "kept headers are missing")


def p4_a_zombie_answers_from_the_record(answer: Answer) -> None:
    own = answer.zombie and answer.outcome is Outcome.EXECUTED
    demand("4 stale holders are refused", not own, "a zombie sent its own answer")


def p4_a_call_looks_at_its_lease(looked: bool) -> None:
    demand("4 stale holders are refused", looked, "a call was made without a look at its lease")


def p5_a_doubt_is_called_one(answer: Answer) -> None:
    """By its name; or by 202, where the answer can be asked for."""
    response = answer.response
    if response is not None and answer.outcome is Outcome.UNKNOWN:
        said = response.status == 202 or b"outcome-unknown" in response.body
        demand("5 only evidence settles", said, "a doubt was told as something else")


def p7_answers_stay_in_their_scope(answer: Answer, others: set[bytes]) -> None:
    demand("7 scopes are apart", not _is_of(answer, others), "another tenant's answer was sent")


def p9_answers_are_for_their_payload(answer: Answer, others: set[bytes]) -> None:
    what = "the answer to another payload was sent"
    demand("9 a mismatch changes nothing", not _is_of(answer, others), what)


def _is_of(answer: Answer, runs: set[bytes]) -> bool:
    headers = () if answer.response is None else answer.response.headers
    return any(name == MADE and run in runs for name, run in headers)


def p12_one_waiter_acts(passed_over: bool) -> None:
    what = "a waiter ran although another was elected"
    demand("12 every key is settled", not passed_over, what)


def p8_only_a_holder_runs(granted: bool) -> None:
    demand("8 fail closed", granted, "a handler ran although no store had granted it the key")


def p8_a_store_error_is_a_refusal(answer: Answer, acted: int) -> None:
    if answer.outcome is not Outcome.STORE_ERROR:
        return
    response = answer.response
    refused = response is not None and response.status == 503
    told = response is not None and any(name == b"retry-after" for name, _ in response.headers)
    demand("8 fail closed", refused and told, "a store error was not a 503 with Retry-After")
    demand("8 fail closed", not acted, "a store error was told of a handler that had acted")


def p9_a_mismatch_does_not_run(answer: Answer, acted: int) -> None:
    ran = answer.outcome is Outcome.MISMATCH and acted > 0
    demand("9 a mismatch changes nothing", not ran, "it ran and was called a mismatch")


def p13_own_records(case: Case, application: str, route: str) -> None:
    """Found by a reconciler or a worker: it looks after what it knows, and nothing else."""
    known = case.terms is not None and (case.terms.application, case.terms.route)
    what = "another's record was looked after"
    demand("13 only who knows a record looks after it", known == (application, route), what)


def p10_same_key_downstream(key: str, expected: str) -> None:
    demand("10 same key downstream", key == expected, "another key was sent downstream")


def p10_writes_commit_with_their_record(staged: int, after: Row | None, owner: bytes) -> None:
    """In one transaction: the handler's writes are there if and only if its answer is kept."""
    record = None if after is None else after.record
    kept = record is not None and record.state is State.COMPLETED and record.fence == owner
    demand("10 writes with their record", kept or not staged, "writes without their record")
    if kept and record is not None and record.snapshot is not None:
        status = snapshot.decode(record.snapshot).status
        demand("10 writes with their record", status < 500 or not staged, "a failure kept writes")
        demand("10 writes with their record", status != 201 or staged > 0, "a success without them")


def p11_a_stream_begins_on_record(entry: Row | None, fence: bytes) -> None:
    blob = None if entry is None or entry.record.fence != fence else entry.record.snapshot
    demand("11 nothing is skipped", blob is not None, "a stream began without its receipt")


def p12_settled_in_the_end(case: Case | None, can_tell: bool) -> None:
    """After the faults: nothing is held, nothing waits; unknown is a dead letter at worst."""
    if case is None:
        return
    state = case.record.state
    moving = state in (State.IN_PROGRESS, State.PENDING)
    demand("12 every key is settled", not moving, f"{state} for ever")
    if state is State.UNKNOWN:
        dead = case.due_at is None
        demand("12 every key is settled", dead, "unknown, and asked about for ever")
        demand("12 every key is settled", not can_tell, "unknown, though there is no doubt")


RUN: Final = frozenset(
    {Outcome.EXECUTED, Outcome.RELEASED, Outcome.SUSPENDED, Outcome.ACCEPTED, Outcome.REPLAYED}
)
"""What may come of a first run; replayed, where it was stored and a worker was there before."""


def p12_no_permanent_conflict(answer: Answer, found: Row | None, alike: bool, now: int) -> None:
    """After all faults: whoever asks is told the end that is on record (``found``), or runs."""
    demand(
        "12 every key is settled",
        answer.outcome in _ends_of(found, alike, now),
        f"a retry after all faults: {answer.outcome}",
    )


def _ends_of(found: Row | None, alike: bool, now: int) -> Container[Outcome]:
    if found is None:
        return RUN
    if not alike:
        return {Outcome.MISMATCH}
    match found.state:
        case State.COMPLETED if not found.record.past_retention(now):
            blob = found.snapshot
            whole = blob is not None and snapshot.decode(blob).response() is not None
            return {Outcome.REPLAYED if whole else Outcome.RECEIPT}
        case State.COMPLETED | State.EXPIRED:
            return {Outcome.EXPIRED}
        case State.UNKNOWN:
            return {Outcome.UNKNOWN}
        case _:
            return RUN


def check_answer(answer: Answer, kept: list[bytes], acted: int) -> None:
    p3_sent_after_it_is_durable(answer, kept)
    p4_a_zombie_answers_from_the_record(answer)
    p5_a_doubt_is_called_one(answer)
    p8_a_store_error_is_a_refusal(answer, acted)
    p9_a_mismatch_does_not_run(answer, acted)
