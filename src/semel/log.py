"""The logger of the package, named ``semel``."""

from __future__ import annotations

import logging

log = logging.getLogger("semel")
