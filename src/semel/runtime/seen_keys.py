"""Which keys this process has probably met: a hint, never an answer."""

from __future__ import annotations

from typing import Final

from semel.core.records import Identity


class SeenKeys:
    """A byte for each of a million slots, started over when crowded.

    A key met before is probably a replay, and reading it is cheaper than claiming it; for a new
    one, as most are, a look would be in vain. To be wrong costs one look, or saves none.
    """

    SLOTS: Final = 1 << 20
    CROWDED: Final = SLOTS // 8

    def __init__(self) -> None:
        self._slots = bytearray(self.SLOTS)
        self._marks = 0

    def meet(self, identity: Identity) -> bool:
        """Whether it was probably met before; from now on it was."""
        slot = int.from_bytes(identity[:3], "big") % self.SLOTS
        if self._slots[slot]:
            return True
        if self._marks >= self.CROWDED:
            self._slots, self._marks = bytearray(self.SLOTS), 0
        self._slots[slot] = 1
        self._marks += 1
        return False

    def forget(self, identity: Identity) -> None:
        """It was not met after all: it was turned away before anybody looked."""
        slot = int.from_bytes(identity[:3], "big") % self.SLOTS
        self._marks -= self._slots[slot]
        self._slots[slot] = 0
