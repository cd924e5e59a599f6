"""Keys: makes new ones (UUIDv7), and checks a caller's own key for its header."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Final

from semel.core.request.keys import MAX_KEY_LENGTH
from semel.errors import ConfigurationError

_TAIL_BITS: Final = 74
_STEP: Final = 1 << 32
"""The tail grows by a random step, so that one key does not tell the next."""


class KeyMaker:
    """Makes UUIDs of version 7 (RFC 9562, 5.7), each larger than the one before.

    Within one millisecond, and while the clock is set back, the random tail grows instead of the
    time (RFC 9562, 6.2, method 2).
    """

    def __init__(
        self,
        milliseconds: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._milliseconds, self._random = milliseconds, random
        self._lock = threading.Lock()
        self._last = (0, 0)

    def __call__(self) -> str:
        now = self._milliseconds()
        with self._lock:
            at, tail = self._last
            if now > at:
                at, tail = now, self._bits(_TAIL_BITS - 1)  # room to grow within the millisecond
            else:
                tail += 1 + self._bits(32) % _STEP
            if tail >> _TAIL_BITS:
                at, tail = at + 1, self._bits(_TAIL_BITS - 1)
            self._last = at, tail
        high, low = tail >> 62, tail & ((1 << 62) - 1)
        text = f"{at << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def _bits(self, count: int) -> int:
        return int.from_bytes(self._random((count + 7) // 8)) & ((1 << count) - 1)


new_key = KeyMaker()
"""The maker of this process; `os.urandom` makes the keys of a forked child differ."""

os.register_at_fork(after_in_child=lambda: setattr(new_key, "_lock", threading.Lock()))

_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")  # visible ASCII without what is syntax when quoted
_QUOTABLE = re.compile(r"[ -~]+")


def checked(key: str, *, quoted: bool) -> str:
    """Return a caller's own key if a header can carry it; the error never shows it."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise ConfigurationError(f"a key is a text of 1 to {MAX_KEY_LENGTH} characters")
    if not (_QUOTABLE if quoted else _BARE).fullmatch(key):
        raise ConfigurationError(
            'a key has visible ASCII characters only, and none of " , ; \\ unless it is quoted'
        )
    return key


def header_value(key: str, *, quoted: bool) -> str:
    """The header's value: the bare key, as most servers read it, or a structured-field String."""
    if not quoted:
        return key
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
