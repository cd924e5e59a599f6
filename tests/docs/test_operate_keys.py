"""The guides on keys and on routes can be typed: what they show is what comes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel.cli.commands import semel
from semel.core.operations.requests import Agree, Claim, Complete, NoRecord, Read
from semel.core.records import Fence, Identity, Origin
from semel.core.request import keys
from semel.core.stored.snapshot import Snapshot, encode
from semel.operators import doctor
from semel.operators.lists import LOOK
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.testing.contract.terms import terms
from tests.docs.pages import page
from tests.docs.story import Command, commands
from tests.docs.test_operate import alike

MINUTE, DAY = 60_000_000, 86_400_000_000
ORIGIN = Origin("tern", "POST", "/payments", "order-1002-of-november")
TERMS = terms("shop", "POST /payments")
SHOWN = Identity(keys.identity(keys.Scope("tern", "POST", "/payments"), ORIGIN.key))
EVICTED = Identity(b"\x5a" * 32)
_SIZES = re.compile(r"(stored bytes: |\(22\)  )\d+")


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """The records that the page shows, in the store of the settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMEL_STORE", "sqlite:///semel.db")
    opened = open_backend("sqlite:///semel.db")
    body = b'{"charge": "ch_0007"}'
    kept = encode(Snapshot(201, (), body, len(body)))
    for identity in (SHOWN, EVICTED):
        fence = Fence(b"\x3e" * 16)
        store = opened.blocking()
        store.perform(Agree(TERMS))
        store.perform(Claim(identity, fence, "r1.x", b"", ORIGIN, MINUTE, terms=TERMS.id))
        store.perform(Complete(identity, fence, kept, DAY, DAY))
    yield opened
    opened.close()


def typed(name: str) -> list[Command]:
    blocks = [block for block in page(name).blocks if block.language == "console"]
    return [command for block in blocks for command in commands(block.text)]


def run(line: str) -> Result:
    program, *arguments = shlex.split(line)
    assert program == "semel"
    return CliRunner().invoke(semel, arguments)


def same(came: str, shown: str) -> bool:
    return alike(_SIZES.sub(r"\1~", came)) == alike(_SIZES.sub(r"\1~", shown))


def test_the_page_on_keys_can_be_typed(backend: Backend) -> None:
    lines = typed("docs/howto/operations/operate-keys.md")
    assert len(lines) == 5
    for command in lines:
        done = run(command.line)
        assert done.exit_code == 0, f"$ {command.line}\n{done.output}"
        assert same(done.stdout, "\n".join(command.shown)), f"$ {command.line}\n{done.stdout}"
    assert isinstance(backend.blocking().perform(Read(EVICTED)), NoRecord)


def test_the_numbers_of_the_page_on_keys_are_the_ones_in_force() -> None:
    text = page("docs/howto/operations/operate-keys.md").text
    assert f"({LOOK:,})" in text
    assert f"a sample of {doctor.SAMPLE:,}" in text
    assert f"more than {doctor.PATIENCE.seconds // 60} minutes" in text
    assert f"takes {doctor.NEAR * 100:.0f} % of `max_run`" in text


def test_the_page_on_routes_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    guide = page("docs/howto/frameworks/audit-routes.md")
    (written,) = [block for block in guide.blocks if block.title == "shop.py"]
    Path("shop.py").write_text(written.text)
    try:
        for command, code in zip(
            typed("docs/howto/frameworks/audit-routes.md"), (1, 0), strict=True
        ):
            done = run(command.line)
            assert done.exit_code == code, done.output
            assert same(done.stdout, "\n".join(command.shown)), done.stdout
    finally:
        sys.modules.pop("shop", None)
