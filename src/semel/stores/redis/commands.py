"""What is sent to Redis: the names of keys, and the commands that call the Lua scripts of ``lua/``.

A bucket is the first ten bits of an identity, and the hash tag of all its keys. So all keys of one
script lie in one slot of a cluster, and buckets have the order of identities. The number of buckets
is part of what is stored: with another number, stored records would not be found.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1, sha256
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias, cast

import hiredis

from semel.core.records import Identity
from semel.core.terms import TermsId

# ── keys ──────────────────────────────────────────────────────────────────────────────────────────

BUCKETS: Final = 1024
SLOTS: Final = 16_384
LAYOUT: Final = 2
"""Part of every name. A version of semel with another layout finds no records of this one, and
would run their requests again; so it refuses a prefix under which another layout is in use."""
LAYOUTS: Final = range(1, 10)

INDEXES: Final = ("due", "deadline", "made")
"""Of each bucket: all its records by duty and time (`layout`); those that wait to be run by their
deadline; those that made a resource."""

SLOT_OF: Final = tuple(crc_hqx(b"%03x" % bucket, 0) % SLOTS for bucket in range(BUCKETS))
"""The slot of a bucket, by Redis' own checksum of its tag."""


def bucket_of(identity: bytes) -> int:
    return identity[0] << 2 | identity[1] >> 6


def bucket_for(text: str) -> int:
    """The bucket of what has a name instead of an identity."""
    return bucket_of(sha256(text.encode()).digest())


class Keys:
    """The names under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        tags = (f"{prefix}:{LAYOUT}:{{{bucket:03x}}}:".encode() for bucket in range(BUCKETS))
        self._heads = tuple(tags)
        self.terms_texts: dict[TermsId, str] = {}
        """The texts of terms that were read before; they never change."""
        self._indexes = tuple(
            tuple(head + name.encode() for name in INDEXES) for head in self._heads
        )
        self.terms = self.named("terms", "all")
        """The bucket and the key of the list of all terms."""
        bucket, workers = self.named("workers", "all")
        self.workers = (bucket, workers, self.named("beats", "all")[1])
        """The bucket of workers, and the keys of what is known of each, and until when."""
        self.primary = self.named("primary", "all")[1]
        """The key of the note about which server is the primary."""

    def record(self, identity: Identity) -> bytes:
        return self._heads[identity[0] << 2 | identity[1] >> 6] + b"r:" + identity

    def more(self, identity: Identity) -> bytes:
        """The hash beside a record, with what few records have."""
        return self._heads[identity[0] << 2 | identity[1] >> 6] + b"m:" + identity

    def due(self, identity: Identity) -> bytes:
        """The index of its bucket."""
        return self._indexes[identity[0] << 2 | identity[1] >> 6][0]

    def of(self, identity: Identity) -> tuple[bytes, ...]:
        """All keys of one record: itself, the hash beside it, its bucket's indexes in order."""
        indexes = self._indexes[bucket_of(identity)]
        return self.record(identity), self.more(identity), *indexes

    def index(self, bucket: int, name: str) -> bytes:
        return self._indexes[bucket][INDEXES.index(name)]

    def named(self, kind: str, name: str) -> tuple[int, bytes]:
        """The bucket and the key of a recipe, a leader or the terms."""
        bucket = bucket_for(name)
        return bucket, self._heads[bucket] + f"{kind}:{name}".encode()

    def elsewhere(self, kind: str, name: str) -> tuple[bytes, ...]:
        """The same key in other layouts; it lies in the same slot."""
        rest = f"{{{bucket_for(name):03x}}}:{kind}:{name}"
        others = (layout for layout in LAYOUTS if layout != LAYOUT)
        return tuple([f"{self._prefix}:{layout}:{rest}".encode() for layout in others])

    def events(self, bucket: int) -> bytes:
        return self._heads[bucket] + b"events"

    def audit(self, bucket: int) -> bytes:
        """A stream: the acts of operators on the bucket's records."""
        return self._heads[bucket] + b"audit"

    def notables(self, bucket: int) -> bytes:
        """A stream: what is worth a look of the bucket's records."""
        return self._heads[bucket] + b"notables"

    def pulse(self, bucket: int) -> bytes:
        """Written before a WAIT, which then waits for all that the node did until then."""
        return self._heads[bucket] + b"pulse"


# ── scripts ───────────────────────────────────────────────────────────────────────────────────────

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
