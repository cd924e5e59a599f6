"""Fences: 128 random bits each, drawn from the system many at a time.

One draw can cost as much as the rest of a small request; the bits are the same.
"""

from __future__ import annotations

import os
from typing import Final

from semel.core.model import Fence

_BYTES: Final = 16
_MANY: Final = 256

_drawn: list[Fence] = []


def new_fence() -> Fence:
    """A fence that nobody else has, in any thread, process or life."""
    try:
        return _drawn.pop()
    except IndexError:
        bits = os.urandom(_BYTES * _MANY)
        _drawn.extend(Fence(bits[at : at + _BYTES]) for at in range(_BYTES, len(bits), _BYTES))
        return Fence(bits[:_BYTES])


# A forked child must not draw what its parent will: a fence is unique for all time.
os.register_at_fork(after_in_child=_drawn.clear)
