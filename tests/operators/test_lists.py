"""Lists newest first: complete, in order, bounded, and honest about how far they looked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Duty, Identity, Micros, Origin, State
from semel.core.stored import snapshot
from semel.core.terms import Terms
from semel.errors import ConfigurationError
from semel.operators import newest
from semel.operators.lists import EffectFilter, RecordFilter, RecordPage, effect_page, page
from semel.operators.newest import ListPlace, read_place
from semel.stores.base import Backend
from semel.stores.memory import MemoryBackend
from semel.stores.sqlite import SqliteBackend
from semel.testing.contract.records import LEASE, MINUTE, accept, claim, new_fence, new_identity
from semel.testing.contract.terms import terms
from tests.stores.harness import FakeClock

HOUR = 60 * MINUTE
DAY = 24 * HOUR
KINDS = {
    "hour": terms(route="POST /hour", retention=HOUR, tombstone=DAY),
    "day": terms(route="POST /day", retention=DAY, tombstone=DAY),
    "week": terms(route="POST /week", retention=7 * DAY, tombstone=HOUR),
}


class Made:
    """A store with records, made one after the other."""

    def __init__(self, backend: Backend, clock: FakeClock) -> None:
        self.backend, self.clock = backend, clock
        self.store = backend.blocking()
        self.order: list[Identity] = []
        for each in KINDS.values():
            self.store.perform(ops.Agree(each))

    def record(
        self, state: State, kind: str | None = "day", *, longer: Micros = 0, **changes: Any
    ) -> Identity:
        """A record that comes to its state now; ``longer`` than its terms say it is kept."""
        self.clock.travel(MINUTE)
        agreed: Terms = KINDS[kind or "hour"]
        number = agreed.id if kind is not None else terms(route="POST /elsewhere").id
        identity, fence, later = new_identity(), new_fence(), agreed.retention + longer
        answer = snapshot.encode_whole(changes.pop("status", 200), (), b"{}")
        resource = changes.pop("resource", None)
        reason = changes.pop("reason", "it broke")
        op: Any = (accept if state is State.PENDING else claim)(identity, fence)
        self.store.perform(replace(op, terms=number, **changes))
        match state:
            case State.COMPLETED:
                end: Any = ops.Complete(identity, fence, answer, later, agreed.tombstone, resource)
            case State.FAILED_RETRYABLE:
                end = ops.Release(identity, fence, later, reason)
            case State.UNKNOWN:
                end = ops.Suspend(identity, fence, reason, changes.get("probe"))
            case _:
                end = None
        if end is not None:
            assert isinstance(self.store.perform(end), ops.Applied)
        self.order.append(identity)
        return identity

    def all(self, wanted: RecordFilter | None = None, limit: int = 50, **how: Any) -> list[Any]:
        found: list[Any] = []
        after: str | None = None
        for _ in range(500):
            got = self.page(wanted, limit, after=after, **how)
            assert len(got.glimpses) <= limit
            found += [each.identity for each in got.glimpses]
            if got.after is None:
                return found
            after = got.after
        raise AssertionError("it does not end")

    def page(self, wanted: RecordFilter | None = None, limit: int = 50, **how: Any) -> RecordPage:
        return page(self.backend, wanted or RecordFilter(), limit, **how)


@pytest.fixture(params=["memory", "sqlite"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    clock = FakeClock()
    backend: Backend = MemoryBackend(clock=clock)
    if request.param == "sqlite":
        backend = SqliteBackend(f"sqlite:///{tmp_path}/records.db", timeout=120, clock=clock)
    yield Made(backend, clock)
    backend.close()


@pytest.fixture
def quick() -> Made:
    clock = FakeClock()
    return Made(MemoryBackend(clock=clock), clock)


EVERY_LIMIT = pytest.mark.parametrize("limit", [1, 2, 5, 50])

# ── order ─────────────────────────────────────────────────────────────────────────────────────────


@EVERY_LIMIT
def test_what_was_completed_last_comes_first_whatever_is_kept_how_long(
    made: Made, limit: int
) -> None:
    for n in range(12):
        made.record(State.COMPLETED, ("hour", "week", "day")[n % 3])
    assert made.all(limit=limit) == made.order[::-1]


@EVERY_LIMIT
def test_all_states_are_one_list(made: Made, limit: int) -> None:
    for n in range(12):
        for state in (State.COMPLETED, State.IN_PROGRESS, State.FAILED_RETRYABLE):
            made.record(state, ("hour", "week", "day")[n % 3])
        made.record(State.PENDING)
        made.record(State.UNKNOWN)
    assert made.all(limit=limit) == made.order[::-1]


def test_tombstones_stand_where_their_answers_stood(made: Made) -> None:
    for n in range(6):
        made.record(State.COMPLETED, ("hour", "day")[n % 2])
    made.clock.travel(HOUR)
    made.store.perform(ops.Reap(100))
    assert len(made.all(RecordFilter((State.EXPIRED,)))) == 3
    assert made.all() == made.order[::-1]


def test_what_is_kept_for_longer_or_under_no_known_terms_is_listed_too(made: Made) -> None:
    for n in range(4):
        made.record(State.COMPLETED, "day", longer=n % 2 * 30 * DAY)
        made.record(State.COMPLETED, None)
        made.record(State.COMPLETED, "week")
    for limit in (1, 3, 50):
        assert sorted(made.all(limit=limit)) == sorted(made.order)
    plain = made.order[0::6] + made.order[2::3]
    listed = [each for each in made.all() if each in plain]
    assert listed == sorted(plain, key=made.order.index, reverse=True)


@EVERY_LIMIT
def test_too_many_to_be_sorted_are_listed_by_when_they_are_due(
    made: Made, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest, "SORTED", 3)
    for n in range(4):
        made.record(State.UNKNOWN)
        made.record(State.COMPLETED)
        if n % 2:
            made.record(State.IN_PROGRESS)
    assert made.page(limit=limit).by_due == (Duty.ASK,)
    listed = made.all(limit=limit)
    assert sorted(listed) == sorted(made.order)
    assert len(made.all(RecordFilter((State.UNKNOWN,)), limit)) == 4
    assert made.page(RecordFilter((State.COMPLETED,)), limit).by_due == ()


RECORDS = st.tuples(
    st.sampled_from([each for each in State if each is not State.EXPIRED]),
    st.sampled_from([*KINDS, None]),
    st.sampled_from([0, 0, 0, 5 * MINUTE, 3 * DAY, 30 * DAY]),
)


@given(
    st.lists(RECORDS, max_size=25),
    st.integers(1, 9),
    st.sampled_from([1, 2, 7, 1000]),
    st.sampled_from([1, 2, 1000]),
    st.integers(0, 3),
)
def test_pages_of_any_size_list_every_record_once(
    records: list[tuple[State, str | None, Micros]], limit: int, look: int, few: int, reaps: int
) -> None:
    clock = FakeClock()
    made = Made(MemoryBackend(clock=clock), clock)
    for state, kind, longer in records:
        made.record(state, kind, longer=longer)
    clock.travel(reaps * HOUR)
    made.store.perform(ops.Reap(100))
    there = [each.identity for each in made.store.perform(ops.Scan(tuple(State), 100)).glimpses]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest, "SORTED", few)
        listed = made.all(limit=limit, look=look)
    assert sorted(listed) == sorted(there)


# ── filters, and what they cost ───────────────────────────────────────────────────────────────────


def test_every_filter_finds_what_fits(quick: Made) -> None:
    other = Origin("acme", "PATCH", "/orders/7", "key-of-sixteen-1")
    plain = quick.record(State.COMPLETED)
    paid = quick.record(State.COMPLETED, "week", status=402, resource="charge/7", origin=other)
    broken = quick.record(State.FAILED_RETRYABLE, reason="Timed out at 7")
    running = quick.record(State.IN_PROGRESS)
    now = quick.clock()
    cases: list[tuple[dict[str, Any], list[Identity]]] = [
        ({"tenant": "acme"}, [paid]),
        ({"method": "PATCH"}, [paid]),
        ({"path": "/orders*"}, [paid]),
        ({"route": "POST /week"}, [paid]),
        ({"application": ""}, [running, broken, paid, plain]),
        ({"application": "other"}, []),
        ({"status": "402"}, [paid]),
        ({"status": "4xx"}, [paid]),
        ({"status": "2xx"}, [plain]),
        ({"status": "202"}, []),
        ({"reason": "TIMED"}, [broken]),
        ({"resource": "charge/7"}, [paid]),
        ({"resource": "charge"}, []),
        ({"older": 2 * MINUTE}, [paid, plain]),
        ({"since": now - MINUTE}, [running, broken]),
        ({"states": (State.FAILED_RETRYABLE, State.IN_PROGRESS)}, [running, broken]),
    ]
    for fields, wanted in cases:
        assert quick.all(RecordFilter(**fields), 1) == wanted, fields
        assert quick.all(RecordFilter(**fields)) == wanted, fields


@pytest.mark.parametrize("status", ["", "4", "4x", "999", "4XX", "200 ", "٤٠٢"])
def test_a_status_is_three_digits_or_a_class(status: str) -> None:
    with pytest.raises(ConfigurationError, match="is no status"):
        RecordFilter(status=status)


def test_a_page_looks_at_so_many_and_says_so(quick: Made) -> None:
    for n in range(40):
        quick.record(State.COMPLETED, ("hour", "week")[n % 2])
    nobody = RecordFilter(tenant="nobody")
    pages = [quick.page(nobody, look=10)]
    while (after := pages[-1].after) is not None:
        assert len(pages) < 50
        pages.append(quick.page(nobody, look=10, after=after))
    assert not any(each.glimpses for each in pages)
    # Each lane is read at least once, one at a time beyond the ten.
    assert max(each.looked for each in pages) <= 10 + 2 * LANES


def test_a_list_that_begins_at_a_time_reads_nothing_older(quick: Made) -> None:
    for _ in range(100):
        quick.record(State.COMPLETED)
    then = quick.clock() - 3 * MINUTE
    got = quick.page(RecordFilter((State.COMPLETED,), since=then), 5)
    assert [each.identity for each in got.glimpses] == quick.order[-4:][::-1]
    assert got.after is None
    assert got.looked <= LANES * 6


LANES = len(KINDS)


def test_a_page_is_not_read_beyond_its_limit(quick: Made) -> None:
    for _ in range(100):
        quick.record(State.COMPLETED)
    assert quick.page(RecordFilter((State.COMPLETED,)), 5).looked <= LANES * 6


def test_what_comes_while_somebody_pages_does_not_disturb_the_rest(quick: Made) -> None:
    for n in range(9):
        quick.record(State.COMPLETED, ("hour", "week", "day")[n % 3])
    there = [*quick.order]
    listed: list[Identity] = []
    after: str | None = None
    for n in range(9):
        got = quick.page(limit=1, after=after)
        listed += [each.identity for each in got.glimpses]
        after = got.after
        quick.record(State.COMPLETED, ("day", "hour", "week")[n % 3])
    assert [each for each in listed if each in there] == there[::-1]


# ── effects ───────────────────────────────────────────────────────────────────────────────────────


def written(made: Made, count: int) -> list[str]:
    keys = [f"{(n * 7) % 10}-{n}" for n in range(count)]
    for n, key in enumerate(keys):
        made.clock.travel(MINUTE)
        made.store.perform(ops.Enqueue(key, None, ("mail", "sms")[n % 2], b"", None, n % 3 * HOUR))
    return keys


def effects(made: Made, shelf: ops.Shelf, limit: int, **filters: Any) -> tuple[list[str], bool]:
    found: list[str] = []
    after: str | None = None
    for _ in range(200):
        got = effect_page(made.store, shelf, EffectFilter(**filters), limit, after)
        assert len(got.effects) <= limit
        found += [each.key for each in got.effects]
        if (after := got.after) is None:
            return found, got.by_due
    raise AssertionError("it does not end")


@EVERY_LIMIT
def test_effects_that_wait_are_sorted_by_when_they_were_written(
    made: Made, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = written(made, 12)
    assert effects(made, ops.Shelf.WAITING, limit) == (keys[::-1], False)
    assert effects(made, ops.Shelf.WAITING, limit, name="sms")[0] == keys[1::2][::-1]
    assert effects(made, ops.Shelf.WAITING, limit, tried=1)[0] == []
    monkeypatch.setattr(newest, "SORTED", 5)
    by_due, said = effects(made, ops.Shelf.WAITING, limit)
    assert said
    assert sorted(by_due) == sorted(keys)
    assert by_due[0] == keys[-1]  # due in two hours, as others are


@EVERY_LIMIT
def test_effects_that_are_dead_or_delivered_come_newest_first(made: Made, limit: int) -> None:
    keys = written(made, 9)
    made.clock.travel(3 * HOUR)
    fence = new_fence()
    made.store.perform(ops.TakeEffects(fence, ("mail", "sms"), 100, LEASE))
    for key in keys[:4]:
        made.store.perform(ops.MarkFailed(key, fence, "no", None))
    for key in keys[:3:-1]:
        made.clock.travel(MINUTE)
        made.store.perform(ops.MarkDelivered(key, fence, None, DAY))
    assert effects(made, ops.Shelf.DEAD, limit)[0] == keys[3::-1]
    assert effects(made, ops.Shelf.DELIVERED, limit)[0] == keys[4:]
    assert effects(made, ops.Shelf.DELIVERED, limit, name="sms")[0] == keys[5::2]


@pytest.mark.parametrize("after", ["", "x", ".", "-", "7", "1.x", f"{'9' * 30}.1", "7-"])
def test_what_is_no_place_of_an_effect_is_refused(quick: Made, after: str) -> None:
    with pytest.raises(ConfigurationError, match="no place"):
        effect_page(quick.store, ops.Shelf.WAITING, EffectFilter(), 5, after)


# ── places ────────────────────────────────────────────────────────────────────────────────────────


def test_a_place_comes_back_from_its_text() -> None:
    identity = Identity(bytes(range(32)))
    for place in (
        ListPlace(7, identity, 9),
        ListPlace(-1, identity, 9, (Duty.ASK, Duty.LEASE)),
        ListPlace(2**62, identity, 0),
    ):
        assert read_place(place.text) == place


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "---", "1-2-3-4", f"1-{'0' * 64}-3-9", f"x-{'0' * 64}-3-", f"1-{'0' * 63}-3-"),
        *(f"1-{'0' * 64}-3", f"-1-{'0' * 64}-3-", f"{2**63}-{'0' * 64}-3-", f"1-{'g' * 64}-3-"),
        *(f"{'9' * 5000}-{'0' * 64}-3-", f"١-{'0' * 64}-3-"),
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no place"):
        read_place(text)


def test_leases_are_listed_while_they_are_renewed(made: Made) -> None:
    held = made.record(State.IN_PROGRESS)
    record = made.store.perform(ops.Read(held))
    assert isinstance(record, ops.Found)
    made.store.perform(ops.Renew(held, record.record.fence, LEASE))
    later = made.record(State.IN_PROGRESS)
    assert made.all(RecordFilter((State.IN_PROGRESS,))) == [later, held]
