"""What every store must do for notables and for workers. Each test has a store of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.operations.notables import NotableKind
from semel.core.records import Micros
from semel.errors import ConfigurationError
from semel.testing.contract.audit import LOOK_ALIKES
from semel.testing.contract.harness import Harness
from semel.testing.contract.records import near, new_identity

ALL = 1_000
HOUR: Micros = 3_600_000_000
KEEP: Micros = 100 * HOUR

MISMATCH = ops.Notable(NotableKind.MISMATCH, "", "POST /payments", "ours", None, '{"fields":["a"]}')


def write(harness: Harness, *notables: ops.Notable, keep: Micros = KEEP) -> None:
    assert harness.perform(ops.WriteNotables(notables, keep)).count == len(notables)


def browse(harness: Harness, limit: int = ALL, **filters: Any) -> tuple[ops.NotableEntry, ...]:
    return harness.perform(ops.BrowseNotables(limit, **filters)).entries


def numbered(number: int, **changes: object) -> ops.Notable:
    return replace(MISMATCH, detail=json.dumps({"n": number}), **changes)


def numbers(entries: tuple[ops.NotableEntry, ...]) -> list[int]:
    return [json.loads(each.detail)["n"] for each in entries]


def pages(harness: Harness, limit: int, **filters: Any) -> Iterator[ops.NotableEntry]:
    for page in harness.pages(lambda before: ops.BrowseNotables(limit, before, **filters)):
        assert len(page.entries) <= limit
        assert page.until is None or page.until == page.entries[-1].place
        yield from page.entries


class Notables:
    def test_all_of_it_is_kept(self, harness: Harness) -> None:
        identity = new_identity()
        write(harness, MISMATCH, replace(MISMATCH, identity=identity, application="shop", count=7))
        known, other = browse(harness)
        if known.identity is None:  # where buckets have streams, these two come in any order
            known, other = other, known
        assert (known.identity, known.application, known.count) == (identity, "shop", 7)
        assert (other.identity, other.application, other.count) == (None, "", 1)
        for each in (known, other):
            assert (each.kind, each.route, each.tenant) == ("mismatch", "POST /payments", "ours")
            assert each.detail == MISMATCH.detail
        now = harness.perform(ops.BrowseNotables(1)).now
        assert near(harness, now, known.at)

    def test_nothing_is_written_of_an_empty_batch(self, harness: Harness) -> None:
        write(harness)
        assert browse(harness) == ()

    @pytest.mark.parametrize(
        "text", ["Zoë 💶", 'it\'s "quoted"; -- \\ more', "a\0b", "lone \ud800", "line\nbreak", ""]
    )
    def test_texts_of_all_kinds_are_kept(self, harness: Harness, text: str) -> None:
        detail = json.dumps({"said": text})
        write(harness, replace(MISMATCH, route=text, tenant=text, detail=detail))
        (entry,) = browse(harness, route=text)
        assert entry.route == entry.tenant
        assert json.loads(entry.detail) == {"said": text}

    def test_the_newest_come_first_and_pages_go_on(self, harness: Harness) -> None:
        write(harness, *(numbered(n) for n in range(5)))
        assert numbers(browse(harness)) == [4, 3, 2, 1, 0]
        assert numbers(tuple(pages(harness, 2))) == [4, 3, 2, 1, 0]
        assert numbers(browse(harness, 2)) == [4, 3]
        with pytest.raises(ConfigurationError, match="no place"):
            browse(harness, 1, before="yesterday")

    def test_those_of_one_key_are_found_among_others(self, harness: Harness) -> None:
        ours, other = new_identity(), new_identity()
        write(harness, *(numbered(n, identity=(ours, other, None)[n % 3]) for n in range(12)))
        assert numbers(browse(harness, identity=ours)) == [9, 6, 3, 0]
        assert numbers(tuple(pages(harness, 3, identity=ours))) == [9, 6, 3, 0]
        assert browse(harness, identity=new_identity()) == ()

    def test_a_list_may_be_of_some_kinds_and_of_one_route(self, harness: Harness) -> None:
        kinds = (NotableKind.MISMATCH, NotableKind.CONFLICT, NotableKind.REFUSAL)
        routes = ("POST /a", "POST /b")
        write(harness, *(numbered(n, kind=kinds[n % 3], route=routes[n % 2]) for n in range(12)))
        assert numbers(browse(harness, kinds=("conflict",))) == [10, 7, 4, 1]
        assert numbers(browse(harness, kinds=("conflict", "refusal"), route="POST /b")) == [
            *(11, 7, 5, 1)
        ]
        assert numbers(tuple(pages(harness, 1, kinds=("mismatch",), route="POST /a"))) == [6, 0]
        assert browse(harness, kinds=("nothing",)) == ()
        identity = new_identity()
        write(harness, numbered(20, identity=identity, kind=NotableKind.REFUSAL))
        assert browse(harness, identity=identity, kinds=("conflict",)) == ()
        assert numbers(browse(harness, identity=identity, kinds=("refusal",))) == [20]

    def test_each_is_forgotten_in_its_time(self, harness: Harness) -> None:
        write(harness, numbered(1), keep=2 * HOUR)
        write(harness, numbered(2), keep=HOUR)
        harness.travel(HOUR - harness.slack - 1)
        assert harness.perform(ops.Prune(ALL)).counts == {}
        harness.travel(harness.slack + 1)
        assert harness.perform(ops.Prune(ALL)).counts == {"notables": 1}
        assert numbers(browse(harness)) == [1]
        harness.travel(HOUR)
        assert harness.perform(ops.Prune(ALL)).counts == {"notables": 1}
        assert browse(harness) == ()

    def test_they_are_forgotten_in_batches(self, harness: Harness) -> None:
        write(harness, *(numbered(n) for n in range(5)), keep=HOUR)
        harness.travel(HOUR)
        first = harness.perform(ops.Prune(2))
        assert (first.counts, first.more) == ({"notables": 2}, True)
        while harness.perform(ops.Prune(2)).more:
            pass
        assert browse(harness) == ()

    def test_there_are_no_more_than_so_many(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        most_notables(monkeypatch, 3)
        identity = new_identity()
        write(harness, *(numbered(n, identity=identity) for n in range(8)))
        for _ in range(8):
            harness.perform(ops.Prune(2))
        assert numbers(browse(harness)) == [7, 6, 5]

    def test_those_of_a_tenant_are_erased(self, harness: Harness) -> None:
        write(harness, *(numbered(n, tenant="ours") for n in range(5)))
        write(harness, numbered(10, tenant="OURS"), numbered(11, tenant="ours", application="shop"))
        count = harness.perform(ops.EraseNotables("ours", 2)).count
        assert count == 2
        while (count := harness.perform(ops.EraseNotables("ours", 2)).count) == 2:
            pass
        assert sorted(numbers(browse(harness))) == [10, 11]

    def test_tenants_that_look_alike_are_told_apart(self, harness: Harness) -> None:
        write(harness, *(numbered(n, tenant=tenant) for n, tenant in enumerate(LOOK_ALIKES)))
        assert harness.perform(ops.EraseNotables(LOOK_ALIKES[3], ALL)).count == 1
        left = {*range(len(LOOK_ALIKES))} - {3}
        assert {*numbers(browse(harness))} == left


def most_notables(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A bound that a test can reach; for Redis, that of one bucket."""
    monkeypatch.setattr(ops, "MOST_NOTABLES", most)
    try:
        from semel.stores.redis import plans_notables
    except ImportError:  # the extra is not installed
        return
    monkeypatch.setattr(plans_notables, "SHARE", most)


WORKER = ops.WorkerInfo("0a", "shop", "worker", "deliver, run", "d1g3st", 42, "1.2.3")


def seen(harness: Harness, limit: int = ALL) -> tuple[ops.WorkerSeen, ...]:
    return harness.perform(ops.ListWorkers(limit)).workers


class Heartbeats:
    def test_a_worker_is_listed_as_it_says(self, harness: Harness) -> None:
        assert seen(harness) == ()
        beaten = harness.perform(ops.Beat(WORKER, HOUR))
        (found,) = seen(harness)
        assert found.worker == WORKER
        assert near(harness, found.until, found.seen_at + HOUR)
        assert near(harness, found.seen_at, beaten.now)

    def test_it_comes_again_and_may_say_something_else(self, harness: Harness) -> None:
        harness.perform(ops.Beat(WORKER, HOUR))
        (before,) = seen(harness)
        harness.travel(HOUR)
        harness.perform(ops.Beat(replace(WORKER, leading=True, does="maintain"), 2 * HOUR))
        (after,) = seen(harness)
        assert (after.worker.leading, after.worker.does) == (True, "maintain")
        assert near(harness, after.until, after.seen_at + 2 * HOUR)
        assert after.seen_at >= before.seen_at

    def test_those_last_seen_come_first(self, harness: Harness) -> None:
        for name in ("c", "a", "b"):
            harness.perform(ops.Beat(replace(WORKER, id=name), HOUR))
            harness.travel(2 * harness.slack + 1)
        assert [each.worker.id for each in seen(harness)] == ["b", "a", "c"]
        assert [each.worker.id for each in seen(harness, 1)] == ["b"]

    def test_one_that_ends_is_not_listed(self, harness: Harness) -> None:
        harness.perform(ops.Beat(WORKER, HOUR))
        harness.perform(ops.Beat(replace(WORKER, id="other"), HOUR))
        harness.perform(ops.Beat(WORKER, None))
        harness.perform(ops.Beat(WORKER, None))  # asked again, it is gone still
        assert [each.worker.id for each in seen(harness)] == ["other"]

    def test_one_that_is_silent_is_listed_for_a_day(self, harness: Harness) -> None:
        harness.perform(ops.Beat(WORKER, HOUR))
        harness.travel(HOUR + ops.WORKER_MEMORY - harness.slack - 1)
        assert harness.perform(ops.Prune(ALL)).counts == {}
        assert len(seen(harness)) == 1
        harness.travel(harness.slack + 1)
        assert harness.perform(ops.Prune(ALL)).counts == {"workers": 1}
        assert seen(harness) == ()

    def test_words_of_all_kinds_are_kept(self, harness: Harness) -> None:
        said = replace(WORKER, application='Zoë "💶"', role="it's; -- \\", does="", host="é")
        harness.perform(ops.Beat(said, HOUR))
        (found,) = seen(harness)
        assert found.worker == said
