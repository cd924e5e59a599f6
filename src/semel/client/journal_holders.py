"""Who holds a call: a process, named so that its death can be told from its silence.

A name is the machine's current boot and process namespace, the process number, and when that
process started: numbers are used again, these together are not. Where the system does not tell
(no /proc), a name says nothing, and only time ends a hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

_PROC = Path("/proc")
_NOWHERE = "-"
_names: dict[int, str] = {}


def this_process() -> str:
    """The name of this process; another one after a fork."""
    pid = os.getpid()
    if pid not in _names:
        place = _place()
        # Without a place the name must still be unlike every other process's.
        born = _born(pid) if place != _NOWHERE else uuid4().hex
        _names[pid] = f"{place} {pid} {born}"
    return _names[pid]


def is_dead(name: str) -> bool:
    """Whether the process has surely ended; False also where that cannot be known from here."""
    place, _, rest = name.partition(" ")
    pid, _, born = rest.partition(" ")
    if place == _NOWHERE or place != _place() or not pid.isdecimal():
        return False
    return _born(int(pid)) != born


def _place() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return _NOWHERE


def _born(pid: int) -> str:
    """When the process started, in ticks since boot; empty when there is none any more."""
    try:
        # The second field is the command in parentheses and may itself hold any character.
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # ended, and its parent has not looked yet
    except (OSError, IndexError):
        return ""
