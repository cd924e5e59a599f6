"""Commands as Redis reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import hiredis

Word: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Word, ...]

# Its stub knows commands of one word only.
pack: Callable[[Command], bytes] = cast("Any", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""One command, as it is written on a link."""
