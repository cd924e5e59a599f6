"""The reference pages say what the code says: every option, default, code, name and command."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import aiohttp
import click
import grpc
import httpx
import pytest
import requests
import urllib3.exceptions

import semel
from semel.check.ladder import LADDER
from semel.check.profiles import profile_names
from semel.cli import commands, output
from semel.config import _SCALARS, load
from semel.core.exchange.exchange import Progress
from semel.core.exchange.problems import CATALOGUE, DOCS, refuse
from semel.core.exchange.replay import _NOT_KEPT
from semel.core.exchange.settle import Verdict, conclude, judge
from semel.core.operations.handler import Abandoned, HandlerOutcome, Raised, Returned
from semel.core.policy import OPTION_NAMES, Policy
from semel.core.records import Response, State
from semel.core.recovery.journal import Journal, PointKind
from semel.core.request import content_type
from semel.core.request.canonical_json import MAX_DEPTH, MAX_VALUES
from semel.core.request.comparison import MAX_NAMED
from semel.core.request.fingerprint import MAX_FIELDS
from semel.core.request.keys import MAX_HEADER_BYTES, MAX_KEY_LENGTH, STRONG_KEY_LENGTH
from semel.stores import open_backend
from semel.stores.mysql import settings as mysql
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.settings import OWN
from semel.stores.postgres.settings import parse as parse_postgres
from semel.stores.redis import RedisBackend
from semel.stores.redis import settings as redis
from semel.stores.sqlite.backend import DEFAULT_TIMEOUT, SqliteBackend
from semel.stores.sqlite.backend import parse as parse_sqlite
from semel.web.body import IN_MEMORY
from tests.docs.pages import page, plain

POLICIES = page("docs/reference/policies.md")
PROBLEMS = page("docs/reference/problems/index.md")
STORES = page("docs/reference/stores.md")
CONFIGURATION = page("docs/reference/configuration.md")
COMMANDS = page("docs/reference/commands.md")


def spoken(value: Any) -> str:
    """A default as the tables write it."""
    match value:
        case timedelta():
            return _duration(value)
        case frozenset():
            return ", ".join(f"`{item}`" for item in sorted(value))
        case str():
            return f'`"{value}"`'
        case semel.FingerprintRule():
            return "`FingerprintRule()`"
        case int() if not isinstance(value, bool) and value and value % 1024**2 == 0:
            return f"{value // 1024**2} MiB"
        case FunctionType():
            return f"`refusals.{value.__name__}`"
        case _:
            return f"`{value!r}`"


def _duration(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def first_two(table: Iterable[list[str]]) -> dict[str, str]:
    return {plain(row[0]): row[1] for row in table}


# ── policies ──────────────────────────────────────────────────────────────────────────────────────


OPTION_GROUPS = (
    "Everyday",
    "Keys",
    "Times",
    "Unknown outcomes",
    "Stored requests",
    "Answers and replays",
    "Changed settings",
)


def test_every_option_of_a_policy_is_listed_with_its_default() -> None:
    documented = first_two(row for group in OPTION_GROUPS for row in POLICIES.table(group))
    assert list(documented) == list(OPTION_NAMES)
    plain_policy = Policy(name="plain")
    assert documented == {name: spoken(getattr(plain_policy, name)) for name in OPTION_NAMES}


FACTORIES = (
    *(semel.ietf(), semel.stripe(), semel.acp(), semel.accepted()),
    semel.payments(probe=None),
)


def test_the_policies_differ_where_the_table_says() -> None:
    rows = {name: [spoken(getattr(each, name)) for each in FACTORIES] for name in OPTION_NAMES}
    differing = {name: row for name, row in rows.items() if len(set(row)) > 1}
    assert {plain(r[0]): r[1:] for r in POLICIES.table("Where they differ")} == differing


def answered(*statuses: int) -> list[HandlerOutcome]:
    return [Returned(Response(status, (), b"")) for status in statuses]


OUTCOMES: dict[str, list[HandlerOutcome]] = {
    "answered 2xx, 3xx or 4xx": answered(200, 201, 204, 303, 400, 402, 404, 409, 422),
    "answered 401, 403, 407, 408, 425 or 429: it did not execute": answered(
        401, 403, 407, 408, 425, 429
    ),
    "is none: the application's router has answered 404, 405 or a redirect": [
        Returned(Response(status, (), b""), by_router=True) for status in (307, 404, 405)
    ],
    "answered 5xx": answered(500, 502, 503, 504),
    "raised `NotExecuted`": [Raised(semel.NotExecuted())],
    "raised `OutcomeUnknown`": [Raised(semel.OutcomeUnknown())],
    "raised `TimeoutError`, `ConnectionResetError`, `ConnectionAbortedError`, `BrokenPipeError` "
    "or `EOFError`": [
        Raised(TimeoutError()),
        Raised(ConnectionResetError()),
        Raised(ConnectionAbortedError()),
        Raised(BrokenPipeError()),
        Raised(EOFError()),
    ],
    "raised what httpx, requests, aiohttp, urllib3, gRPC or `http.client` raise when no whole "
    "answer came": [
        Raised(httpx.RemoteProtocolError("")),
        Raised(requests.ReadTimeout()),
        Raised(aiohttp.ServerDisconnectedError()),
        Raised(urllib3.exceptions.ProtocolError()),
        Raised(grpc.FutureTimeoutError()),
        Raised(http.client.IncompleteRead(b"")),
    ],
    "was cancelled or interrupted": [
        Abandoned(asyncio.CancelledError()),
        Abandoned(KeyboardInterrupt()),
    ],
    "raised anything else": [Raised(ValueError()), Raised(OSError())],
}
FATES = {Verdict.KEEP: "keep", Verdict.RELEASE: "release", Verdict.SUSPEND: "unknown"}


def test_the_table_of_outcomes_is_what_the_judge_says() -> None:
    judged: dict[str, list[str]] = {}
    for situation, outcomes in OUTCOMES.items():
        for outcome in outcomes:
            verdicts = [FATES[judge(policy, outcome)] for policy in FACTORIES]
            assert judged.setdefault(situation, verdicts) == verdicts
    lapse = "stopped answering: its lease ran out"
    judged[lapse] = [str(policy.lapse) for policy in FACTORIES]
    assert {row[0]: row[1:] for row in POLICIES.table("What becomes of an outcome")} == judged


OPERATIONS: dict[str, list[HandlerOutcome]] = {
    "answered 2xx, 3xx or 4xx": answered(200, 201, 204, 303, 400, 402, 404, 409, 422),
    "answered 401, 403, 407, 408, 425 or 429": answered(401, 403, 407, 408, 425, 429),
    "is none: the application's router has answered 404, 405 or a redirect": [
        Returned(Response(status, (), b""), by_router=True) for status in (307, 404, 405)
    ],
    "answered 5xx": answered(500, 502, 503, 504),
    "raised, also `OutcomeUnknown`": [
        Raised(semel.NotExecuted()),
        Raised(semel.OutcomeUnknown()),
        Raised(TimeoutError()),
        Raised(ValueError()),
    ],
    "was cancelled or interrupted": [Abandoned(asyncio.CancelledError())],
}


def courses() -> list[Progress]:
    """Without a call in doubt, in two ways, and with one."""
    repeatable, doubtful = (Progress(Journal().intending("charged")) for _ in range(2))
    repeatable.repeating = True
    for progress in (repeatable, doubtful):
        progress.meet("charged", PointKind.CALL)
    return [Progress(), repeatable, doubtful]


def test_the_table_of_operations_is_what_the_journal_says() -> None:
    concluded: dict[str, list[str]] = {}
    for policy in (semel.ietf, semel.accepted, semel.payments):
        call: Any = SimpleNamespace(policy=policy(mode="resumable", probe=None), worker=None)
        for situation, outcomes in OPERATIONS.items():
            for outcome in outcomes:
                fates = [FATES[conclude(call, outcome, progress)[1]] for progress in courses()]
                assert fates[0] == fates[1]
                assert concluded.setdefault(situation, fates[1:]) == fates[1:]
    assert {row[0]: row[1:] for row in POLICIES.table("Operations")} == concluded


def test_the_arguments_of_a_fingerprint_are_listed_with_their_defaults() -> None:
    documented = first_two(page("docs/reference/fingerprints.md").table("semel.FingerprintRule"))
    given = inspect.signature(semel.FingerprintRule).parameters.values()
    assert documented == {each.name: spoken(each.default) for each in given}


def test_the_limits_of_fingerprints_are_the_ones_in_force() -> None:
    text = page("docs/reference/fingerprints.md").text
    assert f"nested deeper than {MAX_DEPTH}" in text
    assert f"more than {MAX_VALUES:,} values" in text
    assert MAX_VALUES == content_type.MAX_FIELDS
    assert f"up to {MAX_NAMED} names" in text
    assert f"each of the first {MAX_FIELDS} fields" in text


# ── problems and headers ──────────────────────────────────────────────────────────────────────────


def test_every_problem_is_listed_with_its_status_and_whether_to_retry() -> None:
    listed = PROBLEMS.table("The codes")
    assert listed == [
        [f"[`{code}`]({code}.md)", str(each.status), "yes" if each.retryable else "no", each.title]
        for code, each in CATALOGUE.items()
    ]


@pytest.mark.parametrize("code", CATALOGUE)
def test_a_problems_type_leads_to_its_page(code: str) -> None:
    problem, word = CATALOGUE[code], ("not retryable", "retryable")[CATALOGUE[code].retryable]
    told = page(f"docs/{DOCS.partition('.io/')[2]}{code}.md")
    assert told.headings[0] == code
    assert told.section(code).strip().startswith(f"**{problem.status}**, {word}")
    (example,) = told.blocks
    assert json.loads(example.text) == json.loads(refuse(code).body)


def test_every_header_that_is_not_kept_is_named() -> None:
    section = page("docs/reference/headers.md").section("What is kept of an answer")
    named = {word.lower().encode() for word in re.findall(r"`([\w-]+)`", section)}
    assert named == _NOT_KEPT


def test_the_limits_of_keys_are_the_ones_in_force() -> None:
    text = page("docs/reference/headers.md").text
    assert f"longer than {MAX_HEADER_BYTES} bytes" in text
    assert f"longer than {MAX_KEY_LENGTH} characters" in text
    assert f"{STRONG_KEY_LENGTH} to {MAX_KEY_LENGTH} characters" in POLICIES.text


def test_the_memory_for_bodies_is_the_one_in_force() -> None:
    text = page("docs/howto/policies/streams-and-large-bodies.md").text
    assert text.count(f"{IN_MEMORY // 1024**2} MiB in memory") == 1
    assert f"Up to {IN_MEMORY // 1024**2} MiB is collected in memory" in text


# ── configuration, stores, commands ───────────────────────────────────────────────────────────────


def test_every_argument_of_the_guard_is_listed_with_its_default() -> None:
    parameters = inspect.signature(semel.Guard).parameters.values()
    defaults = {
        each.name: "required" if each.default is each.empty else spoken(each.default)
        for each in parameters
    }
    assert first_two(CONFIGURATION.table("Guard")) == defaults


def test_every_method_of_the_guard_is_listed() -> None:
    listed = {re.sub(r"guard\.(\w+)\(.*", r"\1", plain(row[0])) for row in METHODS}
    internal = {"bind", "stand_around", "report_unguarded"}
    public = {name for name, _ in inspect.getmembers(semel.Guard, inspect.isfunction)}
    assert listed == {name for name in public if not name.startswith("_")} - internal


METHODS = CONFIGURATION.table("Methods")


def test_the_options_of_postgresql_are_listed_with_their_defaults() -> None:
    settings = parse_postgres("postgresql://", {})
    defaults: dict[str, Any] = {name: getattr(settings, name) for name in OWN}
    for name in ("timeout", "max_lifetime", "max_idle"):
        defaults[name] = timedelta(seconds=defaults[name])
    documented = first_two(STORES.table("PostgreSQL"))
    assert documented == {name: spoken(value) for name, value in defaults.items()}
    takes = set(inspect.signature(PostgresBackend).parameters) - {"url"}
    assert takes == {*documented, "password"}


def test_the_options_of_mysql_are_listed_with_their_defaults() -> None:
    settings = mysql.parse("mysql://host/database", {})
    defaults: dict[str, Any] = {name: getattr(settings, name) for name in mysql.OWN}
    for name in ("timeout", "max_lifetime", "max_idle"):
        defaults[name] = timedelta(seconds=defaults[name])
    documented = first_two(STORES.table("MariaDB and MySQL"))
    assert documented == {name: spoken(value) for name, value in defaults.items()}
    told = STORES.section("MariaDB and MySQL")
    assert all(f"`{name}`" in told for name in mysql.SERVER)


def test_the_options_of_sqlite_are_listed_with_their_defaults() -> None:
    documented = first_two(STORES.table("SQLite"))
    timeout = spoken(timedelta(seconds=DEFAULT_TIMEOUT))
    assert documented == {"timeout": timeout, "foreign_keys": "off"}
    takes = set(inspect.signature(SqliteBackend).parameters) - {"url", "clock"}
    assert takes == set(documented)
    for option in documented:
        assert parse_sqlite(f"sqlite:///semel.db?{option}=1")[1] == {option: "1"}


def test_the_options_of_redis_are_listed_with_their_defaults() -> None:
    settings = redis.parse("redis://", {})
    options = (*redis.OPTIONS, *redis.FUNCTIONS)
    defaults: dict[str, Any] = {name: getattr(settings, name) for name in options}
    for name in ("timeout", "wait_timeout"):
        defaults[name] = timedelta(seconds=defaults[name])
    documented = first_two(STORES.table("Redis and Valkey"))
    assert documented == {name: spoken(value) for name, value in defaults.items()}
    assert set(inspect.signature(RedisBackend).parameters) - {"url"} == set(documented)


def test_each_store_is_listed_with_what_it_can_do() -> None:
    for url, _, *cells in STORES.table("Stores"):
        able = open_backend(plain(url)).capabilities
        flags = (able.durable, able.shared, able.transactions, able.outbox)
        assert cells == ["yes" if flag else "no" for flag in flags], url


def test_every_command_and_option_is_listed() -> None:
    documented = {
        heading: {plain(row[0]) for row in COMMANDS.table(heading)}
        for heading in COMMANDS.headings
        if heading.startswith("semel")
    }
    named = {"semel": commands.semel, **dict(below(commands.semel, "semel"))}
    assert documented == {name: set(options(command)) for name, command in named.items()}


def below(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    """Every command of a group, and of the groups in it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from below(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def options(command: click.Command) -> list[str]:
    given = [each for each in command.params if isinstance(each, click.Option)]
    return [each.opts[-1] for each in given]


def test_every_probe_of_the_check_is_listed_in_its_order() -> None:
    rows = page("docs/reference/check.md").table("Probes")
    assert [(plain(row[0]), row[1], row[2]) for row in rows] == [
        (each.name, each.title, each.why) for each in LADDER
    ]


def test_every_profile_of_the_check_is_listed() -> None:
    rows = page("docs/reference/check.md").table("Profiles")
    named = {word for row in rows for word in re.findall("`(.+?)`", row[0])}
    assert named == {*profile_names(), ".toml"}


@pytest.mark.parametrize("code", [output.FAILED, output.MISUSED])
def test_the_exit_codes_are_listed(code: int) -> None:
    assert str(code) in first_two(COMMANDS.table("Commands"))


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_public_name_is_listed() -> None:
    table = page("docs/reference/public-names.md").table("Public names")
    names = re.findall(r"`semel\.(\w+)`", " ".join(row[0] for row in table))
    assert sorted(names) == sorted(semel.__all__)


def test_the_attributes_of_a_request_are_listed() -> None:
    table = page("docs/reference/public-names.md").table("Request")
    derived = [name for name, found in vars(semel.Request).items() if isinstance(found, property)]
    assert [plain(row[0]) for row in table] == [*semel.Request.__annotations__, *derived]


@pytest.mark.parametrize("kind", [semel.Operation, semel.AsyncOperation])
def test_what_an_operation_can_do_is_listed(kind: type) -> None:
    table = page("docs/reference/public-names.md").table("Operation")
    listed = [plain(row[0]).partition("(")[0] for row in table]
    assert sorted(listed) == sorted(name for name in dir(kind) if not name.startswith("_"))


def test_the_attributes_of_an_inquiry_are_listed() -> None:
    table = page("docs/reference/public-names.md").table("Inquiry")
    listed = [word for row in table for word in re.findall(r"`(\w+)", row[0])]
    assert listed == [*inspect.signature(semel.Inquiry).parameters, "downstream_key"]


def test_what_a_probe_may_return_is_listed_with_its_defaults() -> None:
    table = page("docs/reference/public-names.md").table("Evidence")
    for shown in [plain(row[0]) for row in table]:
        eval(f"semel.{shown}", {"semel": semel})
    kinds = (semel.Happened, semel.Absent, semel.CannotTell)
    assert {plain(row[0]).partition("(")[0] for row in table} == {each.__name__ for each in kinds}


TARGETS = ("config", "guard", "app")
"""Where settings, guard and application are found; the first is read with the settings."""


def test_every_variable_of_the_environment_is_listed() -> None:
    listed = {plain(row[0]) for row in CONFIGURATION.table("Environment")}
    assert listed - {"NO_COLOR"} == {f"SEMEL_{name.upper()}" for name in (*_SCALARS, *TARGETS)}


def test_the_settings_that_are_shown_can_be_read(tmp_path: Path) -> None:
    (shown,) = [block for block in CONFIGURATION.blocks if block.language == "toml"]
    file = tmp_path / "semel.toml"
    file.write_text(shown.text)
    settings = load(file, {})
    assert {each.name for each in fields(settings)} == set(tomllib.loads(shown.text))
    assert [route.policy.mode for route in settings.routes] == ["leased", "deferred"]


def test_the_tree_of_errors_is_the_codes_own() -> None:
    (tree,) = [b for b in page("docs/reference/errors.md").blocks if b.language == "text"]
    assert semel.errors.__doc__ is not None
    assert tree.text.strip() in inspect.cleandoc(semel.errors.__doc__).replace("\n    ", "\n")
    assert set(re.findall(r"\w+(?= {4,}|\n)", tree.text)) >= set(semel.errors.__all__)


def test_every_state_that_a_record_can_have_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [a-z]", page("docs/reference/states.md").text, re.M)
    assert set(State) <= set(explained)
