"""Policies by method and path, for applications that have no router semel can read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from semel.core.frozen import derived, frozen, value
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.request.keys import canonical_path
from semel.errors import ConfigurationError

_CONVERTORS: Final = {
    "str": r"[^/]+",
    "path": r".*",
    "int": r"[0-9]+",
    "float": r"[0-9]+(?:\.[0-9]+)?",
    "uuid": r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}",
}
_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-z]+))?\}")


@frozen
class Route:
    """A policy by method (``"*"`` for any) and path, in Starlette's syntax."""

    method: str
    path: str
    policy: Policy
    _pattern: re.Pattern[str] = derived()

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigurationError(f"the path of a route must start with '/': {self.path!r}")
        if not isinstance(self.policy, Policy):
            raise ConfigurationError(f"{self.method} {self.path} needs a policy: semel.ietf() …")
        object.__setattr__(self, "method", self.method.upper())
        if not self._takes_part():
            raise ConfigurationError(
                f"{self.label}: the policy leaves {self.method} out and would do nothing; name it "
                f"in its methods=, as in methods={{{self.method!r}}}"
            )
        object.__setattr__(self, "_pattern", _compile(self.path))

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"

    def _takes_part(self) -> bool:
        refuses = self.policy.safe_methods == "refuse" and self.method in SAFE_METHODS
        named = not self.policy.methods or self.method in self.policy.methods  # or exempt
        return self.method == "*" or named or refuses

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


@value
class Place:
    """Where a request goes: the full path, and what of it an application sees that is mounted."""

    path: str
    below: str
    root: str = ""


def place(root: bytes, below: bytes) -> Place:
    """From the decoded octets of the mount prefix and of the path below it."""
    # As in `canonical_path`: Werkzeug looks at what is below, and takes slashes in front as one.
    below = b"/" + below.lstrip(b"/") if below else b""
    path = canonical_path(root + below)
    if not root:
        return Place(path, path)
    return Place(path, canonical_path(below), canonical_path(root))


def without_slash(place: Place) -> Place:
    """The same for a route that is served with and without a slash at its end."""
    return Place(place.path.rstrip("/") or "/", place.below.rstrip("/") or "/", place.root)


def slashes_merged(place: Place) -> Place:
    """The same for a router that takes no notice of a slash more, at the end or within."""
    return Place(merged(place.path), merged(place.below), place.root)


def merged(path: str) -> str:
    """A path with one slash wherever it has several, and none at its end."""
    return re.sub("/{2,}", "/", "/" + path.strip("/"))


def listed(routes: Sequence[Route], method: str, place: Place) -> Route | None:
    """The first listed route that fits the path, with or without the mount prefix.

    A prefix often comes from a proxy's settings, which those who list routes do not think of; a
    route that silently fitted nothing would leave its endpoint under the default policy.
    """
    if not routes:
        return None
    paths = {unquote(place.path), unquote(place.below)}
    return next((r for r in routes if any(r.matches(method, path) for path in paths)), None)


def beneath(path: str, root: str) -> str:
    """What of a path is below a mount prefix; servers may have left that out already."""
    return path[len(root) :] if (path + "/").startswith(root + "/") else path
