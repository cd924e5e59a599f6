"""Paths with parameters, in Starlette's syntax: those of routes, and those of a contract."""

from __future__ import annotations

import re
from typing import Final

from semel.errors import ConfigurationError

CONTRACT_ADDRESS: Final = "/.well-known/idempotency"
"""Where a server publishes its contract."""
_CONVERTORS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}",
}
_OTHER_SYNTAX: Final = re.compile(r"<(?:[a-z]+(?:\([^)]*\))?:)?(\w+)>|/:(\w+)")
"""Parameters as Flask, Django and Express write them: they would fit no path."""
_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-z]+))?\}")
_MOST_CHOICES: Final = 2
"""In a stranger's path; the time to match it is a power of the path's length, with this exponent
and one more."""


def path_pattern(path: str) -> re.Pattern[str]:
    """The pattern of a path in Starlette's syntax."""
    pattern, at = "", 0
    if other := _OTHER_SYNTAX.search(path):
        name = other[1] or other[2]
        raise ConfigurationError(
            f"{path!r}: a parameter is written {{{name}}} here, as in Starlette, not {other[0]}"
        )
    if any(step in ("*", "**") for step in path.split("/")):
        raise ConfigurationError(
            f"{path!r}: one segment is written {{name}} here, and several are {{name:path}}, not *"
        )
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


def foreign_pattern(path: str) -> re.Pattern[str]:
    """The pattern of a path that a stranger wrote, as a server in its contract.

    An error for one that could be matched for hours: each ``{x:path}``, and each further parameter
    of one segment, leaves a choice where it ends, and the choices multiply.
    """
    choices = sum(
        max(0, len(_PARAMETER.findall(segment)) - 1) + segment.count(":path}")
        for segment in path.split("/")
    )
    if choices > _MOST_CHOICES:
        raise ConfigurationError("a path has parameters that could be matched in too many ways")
    return path_pattern(path)
