"""Policies by method and path, for applications that have no router semel can read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from semel.core.policy import Policy
from semel.errors import ConfigurationError

_CONVERTORS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}",
}
_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-z]+))?\}")


@dataclass(frozen=True, slots=True)
class Route:
    """A policy by method (``"*"`` for any) and path, in Starlette's syntax."""

    method: str
    path: str
    policy: Policy
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigurationError(f"the path of a route must start with '/': {self.path!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigurationError(f"{self.method} {self.path} needs a policy: semel.ietf() …")
        object.__setattr__(self, "method", self.method.upper())
        object.__setattr__(self, "_pattern", _compile(self.path))

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"

    def matches(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and self._pattern.fullmatch(path) is not None


def _compile(path: str) -> re.Pattern[str]:
    pattern, at = "", 0
    for found in _PARAMETER.finditer(path):
        convertor = _CONVERTORS.get(found[2] or "str")
        if convertor is None:
            known = ", ".join(_CONVERTORS)
            raise ConfigurationError(f"{path!r}: {found[2]!r} is not one of {known}")
        pattern += re.escape(path[at : found.start()]) + f"(?:{convertor})"
        at = found.end()
    rest = path[at:]
    if "{" in rest or "}" in rest:
        raise ConfigurationError(f"{path!r}: unbalanced braces")
    # Starlette ends its patterns with "$", which lets "/pay%0A" through to the route "/pay".
    return re.compile(pattern + re.escape(rest) + r"\n?", re.DOTALL)


def listed(routes: Sequence[Route], method: str, path: str) -> Route | None:
    """The first listed route that fits; ``path`` is percent-encoded."""
    if not routes:
        return None
    decoded = unquote(path)
    return next((route for route in routes if route.matches(method, decoded)), None)
