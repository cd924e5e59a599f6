"""Sessions of the standalone console: who is logged in, by a random text in a cookie.

They are in memory: one process serves the console, and when it ends everybody is logged out. Only
digests of the texts are kept, and they are compared as such.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from semel.console.users import KnownUser

LONGEST: Final = 12 * 3600.0
"""Seconds after which a session ends, however busy it is."""
IDLE: Final = 3600.0
"""Seconds without a request after which it ends."""
ROTATED: Final = 900.0
"""Seconds after which a session gets another text, so that a copied one is soon worthless."""
OVERLAP: Final = 60.0
"""Seconds for which the text before is still taken: several requests may be under way."""
MOST: Final = 1000
"""Sessions at once; the oldest ends when there are more."""


class _Session:
    def __init__(self, user: KnownUser, began: float, now: float) -> None:
        self.user = user
        self.began = began
        self.made = now
        self.ends = min(began + LONGEST, now + IDLE)
        self.replaced = False


class Sessions:
    """All sessions of a console."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[bytes, _Session] = {}

    def begin(self, user: KnownUser) -> str:
        """A new session; its text is made here, so nobody can choose it for somebody else."""
        with self._lock:
            now = self._clock()
            return self._add(_Session(user, now, now))

    def user(self, text: str) -> KnownUser | None:
        """Who has the session; it lasts on while it is used."""
        with self._lock:
            session = self._live(text)
            if session is None:
                return None
            if not session.replaced:
                session.ends = min(session.began + LONGEST, self._clock() + IDLE)
            return session.user

    def rotate(self, text: str) -> str | None:
        """Another text for the session, when it is time for one."""
        with self._lock:
            now, session = self._clock(), self._live(text)
            if session is None or session.replaced or now - session.made < ROTATED:
                return None
            session.replaced = True
            session.ends = min(session.ends, now + OVERLAP)
            return self._add(_Session(session.user, session.began, now))

    def end(self, text: str) -> None:
        """Log out: with this text, and with every other of the same session."""
        with self._lock:
            session = self._found.get(_digest(text))
            if session is None:
                return
            began, user = session.began, session.user
            self._found = {
                digest: each
                for digest, each in self._found.items()
                if (each.began, each.user) != (began, user)
            }

    def _add(self, session: _Session) -> str:
        now = self._clock()
        self._found = {k: each for k, each in self._found.items() if each.ends > now}
        while len(self._found) >= MOST:
            self._found.pop(next(iter(self._found)))
        text = secrets.token_urlsafe(32)
        self._found[_digest(text)] = session
        return text

    def _live(self, text: str) -> _Session | None:
        session = self._found.get(_digest(text))
        return session if session is not None and session.ends > self._clock() else None


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
