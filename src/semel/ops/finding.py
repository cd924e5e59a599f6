"""Records that people name: by the digits of an identity, or by where a key was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.ops.telling import FAILED, MISUSED, fail, open_guard

if TYPE_CHECKING:
    from semel.core.contract import Recalled
    from semel.core.model import Identity
    from semel.effects.operator import Operator

SHORT: Final = 16
"""Digits of an identity that tables show."""
LEAST: Final = 8
"""Digits that commands take for it, where no other begins so."""


def operator(guard: str | None, store: str | None, app: str | None) -> Operator:
    """Whoever looks after the records that the options name."""
    from semel.effects.operator import Operator
    from semel.ops.targets import app_at

    return Operator(open_guard(guard, store), None if app is None else app_at(app))


def found(operator: Operator, text: str) -> Recalled:
    """The record whose identity is, or begins with, ``text``."""
    recalled = operator.find(identity_of(operator, text))
    return recalled if recalled is not None else fail(_NONE, FAILED)


def identity_of(operator: Operator, text: str) -> Identity:
    """The whole identity, or the only one that begins so."""
    from semel.core.model import Identity
    from semel.effects.records import beginning

    digits = text.lower()
    if not digits or set(digits) - set("0123456789abcdef") or len(digits) > 64:
        fail("IDENTITY is written in hexadecimal, as the list shows it", MISUSED)
    if len(digits) == 64:
        return Identity(bytes.fromhex(digits))
    if len(digits) < LEAST:
        fail(f"IDENTITY needs {LEAST} digits or more", MISUSED)
    identities = beginning(operator._guard.backend, digits)
    if len(identities) != 1:
        fail("several records begin so: give more digits" if identities else _NONE, FAILED)
    return identities[0]


_NONE: Final = "there is no such record"
