"""Encrypts every stored value that is not under the current key again, under that key.

It is safe beside traffic: a value is replaced only while it is the one that was read, so whatever a
request writes meanwhile stays. Interrupted, it is started again: values under the current key have
its prefix, and are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Effect, Identity
from semel.core.stored.sealed import Unopened
from semel.errors import ConfigurationError, StoreUnavailable
from semel.operators.lists import effect_pages
from semel.stores.encryption import EncryptedBackend, is_common

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.stores.base import Store

PAGE: Final = 100
"""Records whose values are in memory at once."""
AT_ONCE: Final = 8
"""Writes under way: they wait for the disk together, and leave most connections to requests."""

_Result: TypeAlias = Literal["resealed", "missed", "unreadable"]


@frozen
class Rotation:
    """How far it has come.

    ``missed``: values that were written meanwhile, or could not be exchanged; a second round finds
    them. ``unreadable``: such that no key given here opens, with the reason of the first.
    """

    resealed: int = 0
    missed: int = 0
    unreadable: int = 0
    reason: str | None = None

    @property
    def remaining(self) -> int:
        return self.missed + self.unreadable


class Rotator:
    """One rotation to the guard's current key."""

    def __init__(self, guard: Guard, said: ops.Act) -> None:
        if not isinstance(guard.backend, EncryptedBackend):
            raise ConfigurationError("nothing is encrypted here: the guard has no encryption=")
        self._said = said
        self._outbox = guard.backend.capabilities.outbox
        self._sealer = guard.backend.sealer
        self._store: Store = guard.backend.inner.blocking()
        self._key = self._sealer.encryption.current
        self._prefix = self._sealer.encryption.prefix
        self._count: Counter[_Result] = Counter()
        self._reason: str | None = None

    def run(self, progress: Callable[[Rotation], None] | None = None) -> Rotation:
        """Run two rounds: the second takes what was written during the first."""
        self._remark(f"begun: {self._said.reason}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in range(2):
                self._count = Counter[_Result]({"resealed": self._count["resealed"]})
                for page in self._pages():
                    self._count.update(pool.map(self._exchange, page))
                    if progress is not None:
                        progress(self._so_far())
                if not self._count["missed"]:
                    break
        done = self._so_far()
        self._remark(f"{done.resealed} values, {done.remaining} remain: {self._said.reason}")
        return done

    def _remark(self, words: str) -> None:
        self._store.perform(ops.Remark(ops.Verb.ROTATE, ops.act(self._said.by, words), self._key))

    def _so_far(self) -> Rotation:
        count = self._count
        return Rotation(count["resealed"], count["missed"], count["unreadable"], self._reason)

    def _pages(self) -> Iterator[list[Callable[[], bool]]]:
        """What is not under the current key, as calls; each says whether the value was replaced."""
        after: Identity | None = None
        while True:
            unlike = self._store.perform(ops.ListUnlike(self._prefix, PAGE, after))
            yield [
                partial(self._reseal, found, part, old)
                for found in unlike.found
                for part, old in (
                    (ops.Part.REQUEST, found.request),
                    (ops.Part.JOURNAL, found.journal),
                    (ops.Part.SNAPSHOT, found.snapshot),
                )
                if old is not None
            ]
            if unlike.until is None:
                break
            after = unlike.until
        for shelf in ops.Shelf if self._outbox else ():
            for listed in effect_pages(self._store, shelf, PAGE):
                others = (e for e in listed.effects if not e.payload.startswith(self._prefix))
                yield [partial(self._reseal_effect, each) for each in others]

    def _exchange(self, exchange: Callable[[], bool]) -> _Result:
        try:
            return "resealed" if exchange() else "missed"
        except Unopened as error:
            self._reason = self._reason or str(error)
            return "unreadable"
        except StoreUnavailable:
            return "missed"  # locked by a handler's transaction, say

    def _reseal(self, found: ops.Exhibit, part: ops.Part, old: bytes) -> bool:
        plain = self._sealer.open(found, part, old)
        if part is ops.Part.SNAPSHOT and is_common(old, found.reason):
            new = self._sealer.seal_common(plain)
        else:
            new = self._sealer.seal(found.identity, found.fence, part, plain)
        op = ops.Reseal(found.identity, found.fence, part, old, new)
        return isinstance(self._store.perform(op), ops.Applied)

    def _reseal_effect(self, effect: Effect) -> bool:
        plain = self._sealer.open_payload(effect.key, effect.payload)
        new = self._sealer.seal_payload(effect.key, plain)
        return self._store.perform(ops.ResealEffect(effect.key, effect.payload, new)).applied
