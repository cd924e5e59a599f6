"""A disk without power: of what was not synced, anything may be there.

A file's writes since its last sync are kept or lost by sectors of 512 bytes, in any combination; of
several writes to one sector the last that got there counts. What lies between, and was never
written, is zeros, or whatever was on the disk before. Entries of a folder come and go in their
order, as journalling file systems see to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class Made:
    """A new file, and its entry in the folder."""

    file: int
    name: str


@dataclass(frozen=True, slots=True)
class Removed:
    name: str


@dataclass(frozen=True, slots=True)
class Wrote:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A file's writes, or with None the folder's entries, that were logged before ``upto``.

    What came while the sync was under way may have missed it.
    """

    file: int | None
    upto: int


@dataclass(frozen=True, slots=True)
class Begun:
    """Somebody asks the store for something."""

    act: int


@dataclass(frozen=True, slots=True)
class Told:
    """The store acknowledged it."""

    act: int


Event: TypeAlias = Made | Removed | Wrote | Resized | Synced | Begun | Told
Survival = Literal["none", "all", "prefix", "sectors"]
"""Of what was not synced: nothing; everything; what came first; any of it, in sectors."""


@dataclass(slots=True)
class _File:
    safe: bytearray = field(default_factory=bytearray)
    unsafe: list[tuple[int, Wrote | Resized]] = field(default_factory=list)


class Disk:
    """Follows a log; tells at any moment what a cut may leave."""

    def __init__(self, start: dict[str, bytes], *, lying: bool = False) -> None:
        self._files = {at: _File(bytearray(content)) for at, content in enumerate(start.values())}
        self._folder = {name: at for at, name in enumerate(start)}
        self._entries: list[tuple[int, Made | Removed]] = []
        self._lying = lying
        """Says that it has synced, and has not."""

    def follow(self, at: int, event: Event) -> None:
        match event:
            case Made(file):
                self._files[file] = _File()
                self._entries.append((at, event))
            case Removed():
                self._entries.append((at, event))
            case Wrote(file) | Resized(file):
                self._files[file].unsafe.append((at, event))
            case Synced(file, upto) if not self._lying:
                self._sync(file, upto)
            case _:
                pass

    def _sync(self, file: int | None, upto: int) -> None:
        if file is None:
            _enter(self._folder, [entry for at, entry in self._entries if at < upto])
            self._entries = [(at, entry) for at, entry in self._entries if at >= upto]
            return
        kept = self._files[file]
        for at, op in kept.unsafe:
            if at < upto:
                _apply(kept.safe, op)
        kept.unsafe = [(at, op) for at, op in kept.unsafe if at >= upto]

    @property
    def unsafe(self) -> int:
        """How many writes are not synced."""
        return len(self._entries) + sum(len(file.unsafe) for file in self._files.values())

    def image(self, survival: Survival, dice: random.Random) -> dict[str, bytes]:
        """The files after a cut, by name."""
        entries = [entry for _, entry in self._entries]
        count = {"none": 0, "all": len(entries)}.get(survival)
        folder = dict(self._folder)
        _enter(folder, entries[: dice.randint(0, len(entries)) if count is None else count])
        return {name: _survived(self._files[at], survival, dice) for name, at in folder.items()}


def _enter(folder: dict[str, int], entries: Iterable[Made | Removed]) -> None:
    for entry in entries:
        if isinstance(entry, Made):
            folder[entry.name] = entry.file
        else:
            folder.pop(entry.name, None)


def _apply(content: bytearray, op: Wrote | Resized) -> None:
    if isinstance(op, Wrote):
        _put(content, op.offset, op.data)
    else:
        _resize(content, op.size)


def _put(content: bytearray, offset: int, data: bytes, junk: random.Random | None = None) -> None:
    if len(content) < offset:
        gap = offset - len(content)
        content.extend(bytes(gap) if junk is None else junk.randbytes(gap))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _survived(file: _File, survival: Survival, dice: random.Random) -> bytes:
    ops = [op for _, op in file.unsafe]
    if survival == "none" or not ops:
        return bytes(file.safe)
    content = bytearray(file.safe)
    if survival == "sectors":
        _any_sectors(content, ops, dice)
        return bytes(content)
    whole = len(ops) if survival == "all" else dice.randrange(len(ops))
    for op in ops[:whole]:
        _apply(content, op)
    if survival == "prefix" and isinstance(torn := ops[whole], Wrote):
        pieces = list(_pieces(torn))
        for offset, data in pieces[: dice.randint(0, len(pieces))]:
            _put(content, offset, data)
    return bytes(content)


def _pieces(op: Wrote) -> Iterable[tuple[int, bytes]]:
    """A write as the disk sees it: sector by sector."""
    at = 0
    while at < len(op.data):
        size = SECTOR - (op.offset + at) % SECTOR
        yield op.offset + at, op.data[at : at + size]
        at += size


def _any_sectors(content: bytearray, ops: Iterable[Wrote | Resized], dice: random.Random) -> None:
    odds = dice.choice((0.05, 0.5, 0.95))
    junk = dice if dice.random() < 0.5 else None
    dead: set[int] = set()
    """Sectors that later writes do not reach either: of each, the first so many got there."""
    limit: int | None = None
    """A file that has not been cut short yet cannot have grown again."""
    for op in ops:
        if isinstance(op, Resized):
            if limit is None and dice.random() < odds:
                _resize(content, op.size)
            else:
                limit = op.size if limit is None else min(limit, op.size)
            continue
        for offset, data in _pieces(op):
            sector = offset // SECTOR
            if sector in dead or (limit is not None and offset + len(data) > limit):
                continue
            if dice.random() < odds:
                _put(content, offset, data, junk)
            else:
                dead.add(sector)
