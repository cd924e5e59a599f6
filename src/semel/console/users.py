"""The users file of the standalone console: names, roles, and hashes of passwords.

It is JSON, written by ``semel users``, and read again whenever it has changed, so that somebody who
is taken out of it cannot log in any more.
"""

from __future__ import annotations

import json
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import scrypt
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final, cast

from semel.console.roles import ConsoleUser
from semel.core.frozen import frozen
from semel.errors import ConfigurationError

_COST: Final = (1 << 15, 8, 3)
"""N, r and p of scrypt: 32 MB and about a third of a second for each try."""
_MEMORY: Final = 128 * 1024 * 1024
SHORTEST: Final = 12
"""Characters of a password."""
_LONGEST: Final = 1024


@frozen
class KnownUser:
    """A user, and what proves who it is."""

    user: ConsoleUser
    password: str = ""
    """Its hash, as `hashed` writes it; empty: let in by a token."""


def hashed(password: str) -> str:
    """``scrypt$N$r$p$salt$hash``."""
    if not SHORTEST <= len(password) <= _LONGEST:
        raise ConfigurationError(f"a password has {SHORTEST} to {_LONGEST} characters")
    salt = secrets.token_bytes(16)
    n, r, p = _COST
    made = scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY)
    texts = (b64encode(each).decode() for each in (salt, made))
    return "$".join(("scrypt", *map(str, _COST), *texts))


def fits(password: str, kept: str) -> bool:
    """Whether the password is the one that was hashed."""
    kind, n, r, p, salt, made = kept.split("$")
    if kind != "scrypt" or len(password) > _LONGEST:
        return False
    tried = scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=b64decode(salt),
        n=int(n),
        r=int(r),
        p=int(p),
        maxmem=_MEMORY,
    )
    return compare_digest(tried, b64decode(made))


_NOBODY: Final = f"scrypt${_COST[0]}${_COST[1]}${_COST[2]}${'A' * 22}==${'A' * 86}=="
"""Compared with when there is no such user, so that it takes as long as with one."""


class UsersFile:
    """The file at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[tuple[int, int], dict[str, KnownUser]] | None = None

    def check(self, name: str, password: str) -> KnownUser | None:
        """The user of this name, if that is the password."""
        known = self.users().get(name)
        right = fits(password, _NOBODY if known is None else known.password)
        return known if known is not None and right else None

    def users(self) -> Mapping[str, KnownUser]:
        """Everybody in the file as it is now."""
        try:
            found = self._path.stat()
            if found.st_mode & 0o022:
                raise ConfigurationError(f"others may write {self._path}: chmod go-w {self._path}")
            tag = (found.st_mtime_ns, found.st_ino)
            if self._read is None or self._read[0] != tag:
                self._read = (tag, _users(json.loads(self._path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"{self._path} is no users file, which `semel users add` writes: {error}"
            raise ConfigurationError(said) from error
        return self._read[1]

    def add(self, user: ConsoleUser, password: str) -> bool:
        """Add somebody, or change what is there; whether the name is new."""
        known = dict(self.users()) if self._path.exists() else {}
        new = user.name not in known
        self._write(known | {user.name: KnownUser(user, hashed(password))})
        return new

    def remove(self, name: str) -> bool:
        """Take somebody out; False when nobody has this name."""
        known = dict(self.users())
        if known.pop(name, None) is None:
            return False
        self._write(known)
        return True

    def _write(self, known: Mapping[str, KnownUser]) -> None:
        """In one step: a reader has the old file or the new one."""
        document = {
            name: {"roles": sorted(each.user.roles), "password": each.password}
            for name, each in sorted(known.items())
        }
        beside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps({"users": document}, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


def _users(document: Any) -> dict[str, KnownUser]:
    listed = cast("dict[str, dict[str, Any]]", document["users"])
    found: dict[str, KnownUser] = {}
    for name, each in listed.items():
        kept = each["password"]
        kind, n, r, p, salt, made = kept.split("$")
        if kind != "scrypt" or not (int(n) and int(r) and int(p)):
            raise ValueError(f"the password of {name} is not hashed with scrypt")
        if not b64decode(salt, validate=True) or not b64decode(made, validate=True):
            raise ValueError(f"the password of {name} is empty")
        found[name] = KnownUser(ConsoleUser(name, each["roles"]), kept)
    return found
