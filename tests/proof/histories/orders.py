"""What players are told to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from semel.core.records import Identity


@dataclass(frozen=True)
class Place:
    """Where a store is. ``through``: its server's port or socket, to come to it over a relay whose
    port is put into the URL."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    through: int | Path | None = None
    player: str = ""
    """Who is sent there."""


@dataclass(frozen=True)
class Round:
    """So many moves of each lane, of so many threads and as many tasks."""

    identities: tuple[Identity, ...]
    seed: int
    lanes: int
    moves: int


@dataclass(frozen=True)
class Look:
    """Tell what became of these."""

    identities: tuple[Identity, ...]


@dataclass(frozen=True)
class Leave:
    """Leave the place."""


Order: TypeAlias = Place | Round | Look | Leave
