"""The Lua scripts of ``lua/``, and the commands that call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias, cast

import hiredis

Word: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Word, ...]

# The stub of hiredis knows commands of one word only.
pack: Callable[[Command], bytes] = cast("Any", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""Encode one command as Redis reads it from a connection."""

RECORD: Final = "record"
"""The file that is put before every script that works on one record."""
SHARED: Final = "shared"
"""The file that follows it, before scripts that may need any of its functions."""
ALONE: Final = "\n-- alone: "
"""In the header of scripts that get neither file: they do not work on one record."""
SHORT: Final = "\n-- short: "
"""In the header of scripts that get `RECORD` only, and only the keys that they use. They are called
by every request, and Lua runs the whole text, with what is put before it, on each call."""


class Script(NamedTuple):
    """The text that EVAL takes, and the digest that EVALSHA takes instead."""

    name: str
    text: bytes
    digest: bytes


@cache
def sources() -> dict[str, str]:
    """Read every file of ``lua/``; the keys are names without ``.lua``."""
    folder = files("semel.stores.redis") / "lua"
    return {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".lua")
    }


@cache
def script(name: str) -> Script:
    """Put a script together. Its first line (``#!lua flags=``) must stay the first."""
    source = sources()[name]
    first, _, rest = source.partition("\n")
    before = () if ALONE in source else (RECORD,) if SHORT in source else (RECORD, SHARED)
    shared = "".join([sources()[each] for each in before])
    text = f"{first}\n{shared}{rest}".encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


ANY: Final = -1
"""The bucket of a call that any node can answer."""


class RedisCall(NamedTuple):
    """One command for the node that serves a bucket, and the script it calls by digest, if any."""

    bucket: int
    command: Command
    script: Script | None = None

    def full(self) -> Command:
        """The same command with the script's text, for a server that does not know the digest."""
        made = self.script
        return self.command if made is None else (b"EVAL", made.text, *self.command[2:])


def script_call(bucket: int, name: str, keys: Sequence[bytes], *words: Word) -> RedisCall:
    """Call a script with its keys and arguments."""
    made = script(name)
    return RedisCall(bucket, (b"EVALSHA", made.digest, len(keys), *keys, *words), made)
