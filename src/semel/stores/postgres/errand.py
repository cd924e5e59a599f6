"""One operation's way to PostgreSQL, without I/O: shared by both colours."""

from __future__ import annotations

from typing import TypeVar

from semel.core.contract import StoreOperation
from semel.stores.postgres.faults import verdict
from semel.stores.sql import errand as any_server
from semel.stores.sql.errand import Errand

R = TypeVar("R")


def errand(op: StoreOperation[R], *, doubt: bool = False) -> Errand[R]:
    """See there."""
    return any_server.errand(op, verdict, doubt=doubt)
