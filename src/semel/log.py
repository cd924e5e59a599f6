"""The logger, named ``semel``. `logging` is loaded with the first line, not with this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

    log: logging.Logger
else:

    class _Log:
        def __getattr__(self, name: str) -> Any:
            import logging

            return getattr(logging.getLogger("semel"), name)

    log = _Log()
