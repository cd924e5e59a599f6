"""Operations that travel together, as arrays: one element for each."""

from __future__ import annotations

from functools import partial
from typing import Final

from semel.stores.postgres.arrays import data, number, text
from semel.stores.sql.kinds import Writer, claims, kinds

_WRITE: Final = Writer(data, text, number)

KINDS: Final = kinds(_WRITE, partial(claims, write=_WRITE))
