"""The Lua files, put together and known by their digests."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

RECORD: Final = "record"
"""Read before every script that works on one record."""
SHARED: Final = "shared"
"""Read after it, before scripts that may need any of it."""
ALONE: Final = "\n-- alone: "
"""In the header of scripts that do not work on one record and need nothing of what is shared."""
SHORT: Final = "\n-- short: "
"""In the header of scripts on the way of every request, which have the keys that they need and no
others. Everything that is read before a script is made anew by each call of it."""


class Script(NamedTuple):
    """What EVAL takes, and the digest that EVALSHA takes instead."""

    name: str
    text: bytes
    digest: bytes


@cache
def sources() -> dict[str, str]:
    """Every file of ``lua/``, by its name."""
    folder = files("semel.stores.redis") / "lua"
    named = ((entry.name, entry) for entry in folder.iterdir())
    return {
        name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for name, entry in named
        if name.endswith(".lua")
    }


@cache
def script(name: str) -> Script:
    """The first line says what the server may do with it, and must stay the first."""
    source = sources()[name]
    first, _, rest = source.partition("\n")
    before = () if ALONE in source else (RECORD,) if SHORT in source else (RECORD, SHARED)
    shared = "".join([sources()[each] for each in before])
    text = f"{first}\n{shared}{rest}".encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
