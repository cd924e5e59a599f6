"""What the API declares about its keys, against what it does. (Filled in below.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.check.run import CheckProbe, CheckRun


def declared_contract(run: CheckRun) -> Mapping[str, Any] | None:
    return None


def probes_of_contract(declared: Mapping[str, Any] | None) -> list[CheckProbe]:
    return []
