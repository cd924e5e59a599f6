"""Later versions of semel: copies of this one, changed as a later one might be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.proof.versions import node

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "semel"
SQL = Path("stores/sql")
DIALECTS = ("sqlite", "postgresql", "mysql")


def copied(folder: Path) -> Path:
    """With its compiled files, which are valid for as long as a source is not changed."""
    shutil.copytree(PACKAGE, folder / "semel")
    return folder / "semel"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path.name} has no {old!r}"
    path.write_text(text.replace(old, new))


def next_version(folder: Path) -> Path:
    """A column or field that this version does not know, and statements and scripts with it."""
    package = copied(folder)
    for dialect in DIALECTS:
        migration = package / SQL / "migrations" / dialect / "0002_note.sql"
        migration.write_text("-- oldest: 1\nALTER TABLE semel_record ADD COLUMN note TEXT;\n")
        complete = package / SQL / "sent" / dialect / "complete.sql"
        change(complete, "SET state", "SET note = 'newer', state")
    script = package / "stores/redis/lua/complete.lua"
    note = "redis.call('HSET', KEYS[3], 'note', 'newer') has = HAS_MORE"
    change(script, "if has < HAS_MORE then has = 0 end", note)
    return folder


def distant_version(folder: Path) -> Path:
    """Another table for records, and other names of keys: older programs must not go on."""
    package = copied(folder)
    for dialect in DIALECTS:
        migration = package / SQL / "migrations" / dialect / "0002_moved.sql"
        migration.write_text("-- oldest: 2\nALTER TABLE semel_record RENAME TO semel_moved;\n")
    for query in (package / SQL / "sent").rglob("*.sql"):
        query.write_text(query.read_text().replace("semel_record", "semel_moved"))
    change(package / "stores/redis/commands.py", "LAYOUT: Final = 2", "LAYOUT: Final = 3")
    return folder


def careless_version(folder: Path) -> Path:
    """Likewise, and it does not look whether there are records under other names."""
    distant_version(folder)
    commands = folder / "semel" / "stores/redis/commands.py"
    change(commands, "LAYOUTS: Final = range(1, 10)", "LAYOUTS: Final = range(3, 4)")
    return folder


class Running:
    """A node of some version, and the pipe to it."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, node.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(path)},
        )

    def __call__(self, do: str, **told: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
        self._process.stdin.flush()
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply

    def close(self) -> None:
        self._process.communicate()
