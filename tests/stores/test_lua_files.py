"""The Lua files against the state table, the operations and each other."""

from __future__ import annotations

import re
from typing import Any

import pytest

from semel.core.operations import (
    audit,
    erasure,
    lists,
    maintenance,
    notables,
    outbox,
    requests,
    resealing,
    workers,
)
from semel.core.operations.requests import StoreOperation
from semel.core.records import State
from semel.core.states import TABLE, RecordEvent
from semel.stores.redis.commands import RECORD, SHARED, script, sources
from semel.stores.redis.operation_retry import PLANS

HEADER = re.compile(
    r"\A#!lua(?: flags=allow-oom)?\n-- (\w+): .+\n(?:-- .*\n)*-- takes: .+\n(?:-- .*\n)*"
    r"-- gives: .+\n(?:-- .*\n)*-- why: "
)
EVENTS = re.compile(r"^-- event: (.+)$", re.MULTILINE)
SCRIPTS = sorted(set(sources()) - {RECORD, SHARED})
EVERY_SCRIPT = pytest.mark.parametrize("name", SCRIPTS)
NUMBER = r"now|_until$|_at$|_size$|tonumber|^#|^\d+\)?$|due|row\[2\]\)|^has$|HAS_MORE|start|value"
INSIDE_A_TRANSACTION = {RecordEvent.CLAIM_COMPLETE}
"""What Redis has no transaction for."""


@EVERY_SCRIPT
def test_a_script_says_what_it_takes_gives_and_why(name: str) -> None:
    found = HEADER.match(sources()[name])
    assert found is not None
    assert found[1] == name


@EVERY_SCRIPT
def test_what_a_script_may_do_is_its_first_line(name: str) -> None:
    assert script(name).text.startswith(b"#!lua")
    assert b"no-writes" not in script(name).text.partition(b"\n")[0]


def test_only_what_begins_something_or_is_not_needed_is_refused_when_memory_is_full() -> None:
    refused = {name for name in SCRIPTS if "allow-oom" not in sources()[name].partition("\n")[0]}
    assert refused == {"claim", "accept", "note", "register", "agree", "write_notable"}


def test_every_event_of_the_table_is_some_scripts() -> None:
    named = {RecordEvent(event) for text in sources().values() for event in EVENTS.findall(text)}
    assert named == set(RecordEvent) - INSIDE_A_TRANSACTION


@EVERY_SCRIPT
def test_a_script_names_only_the_states_its_events_lead_to(name: str) -> None:
    text = sources()[name]
    events = [RecordEvent(event) for event in EVENTS.findall(text)]
    if not events:
        return
    rows = [row for row in TABLE if row.event in events]
    known = {row.source for row in rows} | {row.target for row in rows}
    body = re.sub(r"--[^\n]*", "", text)
    body = re.sub(r"on_lapse [~=]= '\w+'", "", body)
    said = {*re.findall(r"'(\w+)'", body), *map(str.lower, re.findall(r"\b[A-Z_]+\b", body))}
    words = said & {state.value for state in State}
    # What a deferred request that was released has become is told apart by asking again.
    assert {State(word) for word in words} <= known | {State.PENDING, State.FAILED_RETRYABLE}


def test_every_operation_of_a_store_has_a_plan() -> None:
    asked: set[type[StoreOperation[Any]]] = set()
    for module in (
        requests,
        maintenance,
        lists,
        outbox,
        audit,
        erasure,
        resealing,
        notables,
        workers,
    ):
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, StoreOperation):
                asked.add(each)
    assert set(PLANS) == asked - {StoreOperation}


def test_no_script_sets_a_time_to_live() -> None:
    """An unsettled record never becomes free by time."""
    for text in sources().values():
        assert not re.search(r"'P?EXPIRE(AT)?'|SETEX|'(EX|PX|EXAT|PXAT)'", text)


def test_no_script_compares_bytes_by_order() -> None:
    """Lua would ask the server's locale; numbers are made of what is compared with < and >."""
    for name, text in sources().items():
        body = re.sub(r"--[^\n]*", "", text)
        for left, right in re.findall(r"([#\w.\[\]()]+) [<>]=? ([#\w.\[\]()]+)", body):
            for side in (left, right):
                assert re.search(NUMBER, side), (
                    name,
                    left,
                    right,
                )
