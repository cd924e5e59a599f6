"""What the guides tell an operator to run does what they say, and nothing else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from semel.core import operations as ops
from semel.core.maintenance import ONE_WRITER, PACE
from semel.core.policy import Policy
from semel.core.records import Fence, Identity, OnLapse, Origin, Record, State
from semel.core.recovery import journal
from semel.core.stored.snapshot import decode
from semel.inbox.inbox import KEEP, MAX_BODY
from semel.outbox import signatures
from semel.runtime.flow_runner import PATIENCE
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.testing.contract.terms import terms
from semel.worker.maintenance import INTERVAL
from tests.cli import commandline
from tests.docs.pages import page
from tests.docs.story import Command, commands
from tests.servers import MariadbServer

HOUR = 3_600_000_000
ORIGIN = Origin("tern", "POST", "/payments", "order-1002-of-november")
TERMS = terms("shop", "POST /payments")
UNKNOWN = {name: Identity(bytes.fromhex(name) * 32) for name in ("3e", "4f", "5a", "6b")}
OPERATION = "6b"
UNKNOWN_PAGE = page("docs/howto/effects/operate-unknown.md")


def sql(name: str, dialect: str) -> list[str]:
    """The statements of a page for one kind of database."""
    found = [b.text for b in page(name).blocks if b.language == "sql" and dialect in b.marks]
    assert found, f"{name} has no SQL for {dialect}"
    return found


def test_a_role_without_rights_to_the_schema_can_claim(postgres_url: str) -> None:
    (statements,) = sql("docs/howto/stores/postgresql.md", "postgresql")
    with psycopg.connect(postgres_url) as connection:
        connection.execute(statements.encode())
    open_backend(postgres_url.replace("postgres@", "semel_owner@")).migrate()
    app = open_backend(postgres_url.replace("postgres@", "shop@"))
    claim = ops.Claim(UNKNOWN["3e"], Fence(bytes(16)), "r1.x", b"", ORIGIN, HOUR, terms=TERMS.id)
    assert isinstance(app.blocking().perform(claim), ops.Claimed)
    app.close()


def test_a_user_without_rights_to_the_schema_can_claim_on_mariadb(mariadb: MariadbServer) -> None:
    (statements,) = sql("docs/howto/stores/mariadb.md", "mysql")
    users = ("semel_owner:a%20secret", "shop:another%20secret")
    mariadb.execute("CREATE DATABASE shop")
    try:
        for statement in filter(str.strip, statements.split(";")):
            mariadb.execute(statement)
        owner, app = (
            open_backend(f"mysql://{user}@127.0.0.1:{mariadb.port}/shop") for user in users
        )
        owner.migrate()
        claim = ops.Claim(
            UNKNOWN["3e"], Fence(bytes(16)), "r1.x", b"", ORIGIN, HOUR, terms=TERMS.id
        )
        assert isinstance(app.blocking().perform(claim), ops.Claimed)
        app.close()
    finally:
        for user in users:
            mariadb.execute(f"DROP USER IF EXISTS '{user.partition(':')[0]}'@'%'")
        mariadb.execute("DROP DATABASE shop")


# ── settling an unknown outcome ───────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/semel.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    """The records that the page shows."""
    opened = open_backend(url)
    opened.migrate()
    store = opened.blocking()
    for name, identity in UNKNOWN.items():
        fence = Fence(name.encode().ljust(16))
        store.perform(ops.Agree(TERMS))
        on_lapse = OnLapse.RESUME if name == OPERATION else OnLapse.UNKNOWN
        given = (identity, fence, "r1.x", b"", ORIGIN, HOUR, on_lapse)
        store.perform(ops.Claim(*given, terms=TERMS.id))
        if name == OPERATION:
            begun = journal.encode(journal.Journal().intending("charge"))
            store.perform(ops.Advance(identity, fence, begun))
        store.perform(ops.Suspend(identity, fence, "TimeoutError"))
    yield opened
    opened.close()


def record(backend: Backend, name: str) -> Record:
    found = backend.blocking().perform(ops.Read(UNKNOWN[name]))
    assert isinstance(found, ops.Found)
    return found.record


def typed(name: str) -> list[Command]:
    """The lines of a page that begin with a dollar sign."""
    blocks = [block for block in page(name).blocks if block.language == "console"]
    return [command for block in blocks for command in commands(block.text)]


def run(line: str, folder: Path, url: str) -> str:
    program, *arguments = shlex.split(line)
    assert program == "semel"
    done = commandline.run(*arguments, folder=folder, SEMEL_STORE=url)
    assert done.returncode == 0, f"$ {line}\n{done.stderr}"
    return done.stdout


_VARIES = re.compile(r"\b\d+[smhd]\b|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|semel_[0-9a-f]{40}")


def alike(text: str) -> list[list[str]]:
    """The words of each line; ages, dates and derived keys are all the same."""
    return [_VARIES.sub("~", line).split() for line in text.strip().splitlines()]


def test_the_page_on_unknown_outcomes_can_be_typed(
    backend: Backend, url: str, tmp_path: Path
) -> None:
    (tmp_path / "answer.json").write_text('{"charge": "ch_0007"}')
    lines = typed("docs/howto/effects/operate-unknown.md")
    for name, result in (("charge", "ch_0008"), ("right", "ch_0009")):
        (tmp_path / f"{name}.json").write_text(f'"{result}"')
    assert len(lines) == 7
    for command in lines:
        came = run(command.line, tmp_path, url)
        assert alike(came) == alike("\n".join(command.shown)), f"$ {command.line}\n{came}"
    settled = record(backend, "3e")
    assert settled.state is State.COMPLETED
    assert decode(settled.snapshot or b"").body == b'{"charge": "ch_0007"}'
    assert settled.reason == "operator ann: happened (ch_0007): charge in the dashboard"
    assert record(backend, "4f").state is State.FAILED_RETRYABLE
    assert record(backend, "5a").state is State.EXPIRED
    found = backend.blocking().perform(ops.Recall(UNKNOWN[OPERATION]))
    assert isinstance(found, ops.Recalled)
    assert journal.decode(found.case.journal).points[-1].result == "ch_0009"


# ── ledgers, numbers ──────────────────────────────────────────────────────────────────────────────


def test_the_ledgers_of_the_page_can_be_compared(
    backend: Backend, url: str, tmp_path: Path
) -> None:
    (line,) = [c.line for c in typed("docs/howto/effects/reconcile.md") if "ledger" in c.line]
    (tmp_path / "entries.csv").write_text("key,amount\n")
    here = line.replace("sqlite:///semel.db", shlex.quote(url))
    assert run(here, tmp_path, url) == "0 agree, 0 differ\n"


def test_the_numbers_of_the_pages_are_the_ones_in_force() -> None:
    text = page("docs/howto/effects/reconcile.md").text
    policy = Policy(name="plain")
    assert (policy.reconcile_after, policy.give_up_after) == (timedelta(minutes=1), timedelta(3))
    assert "`reconcile_after` (a minute)" in text
    assert "`give_up_after` (three days" in text
    assert f"has {PATIENCE.seconds} seconds" in text
    assert f"more than {signatures.TOLERANCE.seconds // 60} minutes from now" in text
    assert f"larger than {MAX_BODY // 1024**2} MiB" in text
    assert f"remembered for {KEEP.days} days" in text
    text = page("docs/howto/operations/maintenance.md").text
    assert f"every {INTERVAL.seconds} seconds" in text
    assert f"in batches of {PACE.batch}," in text
    assert f"a batch is {ONE_WRITER.batch} records" in text
