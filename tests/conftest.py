"""What every test may ask for: databases, poolers, and a fixed way of running."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from tests import canary
from tests.servers import MariadbServer, PgBouncer, PostgresServer, ValkeyCluster, ValkeyServer
from tests.servers import mariadb as mariadb_binaries
from tests.servers import mysql as mysql_binaries
from tests.servers import pgbouncer as pgbouncer_binary

# An assertion that fails there says what it compared, as those in tests do.
pytest.register_assert_rewrite("semel.testing.contract")

# `ci` is the default everywhere: the same examples on every run, so a failure is the change's.
# `SEMEL_TEST_HYPOTHESIS=explore` looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("SEMEL_TEST_HYPOTHESIS", "ci"))

# Programs that are started in the background by a script ignore Ctrl-C, and so does whatever they
# start; tests send it to processes of theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

IS_CI = os.environ.get("CI") == "true"
CAMPAIGNS = Path(__file__).parent / "proof"
LINES = pytest.StashKey[list[str]]()
"""What is said at the end of the run."""


SLOW = (
    *("test_contract", "test_contract_rounds", "test_transactions", "test_sql", "test_mysql"),
    *("test_atomic", "test_atomic_servers", "test_servers", "test_deferred", "test_policy_table"),
    *("test_redis", "test_redis_cluster", "test_galera", "test_postgres_failover"),
    *("test_unknown", "test_replay_cache", "test_campaign", "test_explorer", "test_frameworks"),
    *("test_histories", "test_lockstep", "test_power", "test_operations", "test_crash"),
    *("test_faults", "test_reaper"),
)
"""Files that take longest: begun first, so that no process is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "proof":
        settings.load_profile(os.environ.get("SEMEL_TEST_HYPOTHESIS", "explore"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """A property looked at for long is a campaign too: `make proof` looks for new examples. And
    campaigns go with their controls, which are small. Of the rounds of a race in the contract of
    the stores, `make test` takes one."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    if params.get("_round", 0):
        item.add_marker("proof")
    if item.config.option.markexpr != "proof":
        return
    if item.path.parent == CAMPAIGNS or is_hypothesis_test(getattr(item, "obj", None)):
        item.add_marker("proof")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in SLOW)


@pytest.fixture(scope="session", autouse=True)
def canaries_watched() -> Iterator[None]:
    """Nothing that semel says has a key, a body or a token in it (`tests.canary`)."""
    with canary.watch():
        yield


@pytest.fixture(autouse=True)
def no_canary_escaped(canaries_watched: None) -> Iterator[None]:
    canary.escaped.clear()
    yield
    found, canary.escaped[:] = list(canary.escaped), []
    assert not found, "secrets in what semel says:\n" + "\n".join(found)


@pytest.fixture(scope="session", autouse=True)
def servers_are_asked_once() -> Iterator[None]:
    """Whether they keep what they acknowledge: asked again after a second, it would be among what
    a test counts or holds on a slow machine. Tests of that say when."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            "postgres.connection",
            "mysql.protocol",
            "redis.pool_async",
            "redis.pool_sync",
            "redis.operation_retry",
        ):
            patch.setattr(f"semel.stores.{module}.CHECK_AGAIN", 3600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def notables_wait() -> Iterator[None]:
    """They are written when a guard is closed: a thread that writes after a second would do so in
    the midst of another test. Tests of that say when."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semel.runtime.notables.EVERY", 3600.0)
        yield


STANDING = {"semel-maintenance", "semel-census"}
"""Threads that go on until their guard is closed, and then act in the midst of other tests."""


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = threading.enumerate()
    yield
    left = [each for each in threading.enumerate() if each.name in STANDING]
    assert all(each in before for each in left), "this test did not close its guard"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def note(request: pytest.FixtureRequest, line: str, what: str = "servers") -> None:
    """Remember for the end of the run which servers the tests had, or why they had none."""
    lines = request.config.stash.setdefault(LINES, [])
    if f"{what}: {line}" not in lines:
        lines.append(f"{what}: {line}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    lines = node.config.stash.setdefault(LINES, [])
    told = getattr(node, "workeroutput", {}).get("lines", [])
    lines.extend(line for line in told if line not in lines)


def not_run(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Why tests were not run, and how many for each reason."""
    skipped: list[pytest.TestReport] = reporter.stats.get("skipped", [])
    reasons = (each.longrepr[2] for each in skipped if isinstance(each.longrepr, tuple))
    return Counter(reason.removeprefix("Skipped: ") for reason in reasons)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes tells the one that speaks to people. CI does without no test."""
    config = session.config
    output: Any = getattr(config, "workeroutput", None)
    if output is not None:
        output["lines"] = config.stash.get(LINES, [])
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if IS_CI and reporter is not None and not_run(reporter) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(LINES, []):
        terminalreporter.write_line(line)
    for reason, count in not_run(terminalreporter).items():
        forbidden = " (with CI=true that is a failure)" if IS_CI else ""
        terminalreporter.write_line(f"not run: {count} tests: {reason}{forbidden}")


def found_or_skipped(found: object, how_to_get_it: str) -> None:
    """CI does not do without: there the server itself says that it was not found."""
    if found is None and not IS_CI:
        pytest.skip(how_to_get_it)


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """One server for the whole run. Tests that stop or kill it start their own instead."""
    with PostgresServer() as server:
        note(request, str(server))
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database of one's own."""
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    """One server for the whole run; fetched where there is none. Or MySQL, where it is wanted."""
    if not mysql_binaries.wanted():
        found_or_skipped(mariadb_binaries.find(), mariadb_binaries.HOW_TO_GET_IT)
    with mysql_binaries.chosen()() as server:
        note(request, str(server))
        yield server


@pytest.fixture
def mariadb_url(mariadb: MariadbServer) -> Iterator[str]:
    """An empty database of one's own."""
    with mariadb.database() as url:
        yield url


@pytest.fixture(scope="session")
def valkey(request: pytest.FixtureRequest) -> Iterator[ValkeyServer]:
    """One server for the whole run. Tests that stop or disturb it start their own instead."""
    with ValkeyServer() as server:
        note(request, str(server))
        yield server


@pytest.fixture(scope="session")
def valkey_cluster(request: pytest.FixtureRequest) -> Iterator[ValkeyCluster]:
    """Three primaries, likewise."""
    with ValkeyCluster() as cluster:
        note(request, str(cluster))
        yield cluster


@pytest.fixture(scope="session")
def pgbouncer(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[PgBouncer]:
    """One pooler for the whole run; fetched where there is none."""
    found_or_skipped(pgbouncer_binary.find(), pgbouncer_binary.HOW_TO_GET_IT)
    with PgBouncer(postgres) as pooler:
        note(request, str(pooler))
        yield pooler


@pytest.fixture
def pgbouncer_url(pgbouncer: PgBouncer, postgres: PostgresServer) -> Iterator[str]:
    """An empty database of one's own, reached through PgBouncer in transaction mode."""
    with postgres.database() as url:
        yield pgbouncer.url_of(database_of(url))


def database_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]
