"""Alembic: ``--autogenerate`` and ``alembic check`` leave semel's tables alone.

Alembic takes every table that is not in the application's metadata for one that was removed, and
writes a migration that drops it: all keys would be forgotten, and their requests could run again.
semel's tables have a history of their own (`semel migrate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["include_name"]

PREFIX: Final = "semel_"
"""Every table of semel's has it."""


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
    """For ``context.configure(…, include_name=include_name)`` in ``env.py``: False for our tables.

    With a function of your own: ``mine(*given) and include_name(*given)``. (``include_object``
    would come too late: SQLAlchemy has read the table by then, and warns of an index that it does
    not know.)
    """
    return not (type_ == "table" and name is not None and name.startswith(PREFIX))
