"""The Lua files, put together and known by their digests."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

SHARED: Final = "shared"
ALONE: Final = "\n-- alone: "
"""In the header of scripts that do not work on one record and need nothing of what is shared."""


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
    shared = "" if ALONE in source else sources()[SHARED]
    text = f"{first}\n{shared}{rest}".encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
