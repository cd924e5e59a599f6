"""Terms for records that tests make themselves."""

from __future__ import annotations

from typing import Any

from semel.core.frozen import replace
from semel.core.policy import ietf
from semel.core.terms import EVERY_ROUTE, Terms


def terms(application: str = "", route: str = EVERY_ROUTE, **changes: Any) -> Terms:
    """Those of the default policy, but for what is said."""
    plain = ietf().terms(application, route, probe=False)
    return replace(plain, **changes)
