"""The independent witness: a file to which every execution of a handler adds one line.

Tests count executions here, never by what an application answers.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests import canary


@dataclass(frozen=True)
class Effect:
    """One execution: in which process, and the nonce that its answer carries."""

    key: str
    pid: int
    nonce: str


class Effects:
    """One line per execution. O_APPEND: lines of several processes never mix."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def happen(self, key: str) -> str:
        """Execute: from here on it has happened. Returns a nonce no other execution has."""
        nonce = f"{uuid4().hex}-{canary.ANSWER}"
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{key} {os.getpid()} {nonce}\n".encode())
        finally:
            os.close(fd)
        return nonce

    def of(self, key: str) -> list[Effect]:
        """All executions under one key, in their order."""
        return [effect for effect in self.all() if effect.key == key]

    def all(self) -> list[Effect]:
        if not self._path.exists():
            return []
        lines = [line.split(" ") for line in self._path.read_text().splitlines()]
        return [Effect(key, int(pid), nonce) for key, pid, nonce in lines]
