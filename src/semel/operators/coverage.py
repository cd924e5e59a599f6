"""Which routes of an application change something, and whether keys count there."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from semel.core.frozen import frozen
from semel.core.policy import SAFE_METHODS, Policy
from semel.errors import ConfigurationError
from semel.guard import Guard
from semel.web.inventory import RouteMethod, inventory
from semel.web.routes import layers

Keys = Literal["enforces", "accepts", "exempt", "default", "ignores"]


@frozen
class RouteKeys:
    """One method of one route, and what it does with keys.

    enforces: a request without a key is refused. accepts: keys count, by a policy for this route.
    exempt: a policy says that it needs none. default: keys count only by the guard's default.
    ignores: a retry runs again.
    """

    method: str
    path: str
    keys: Keys
    said: str
    policy: Policy | None
    waived: bool
    """Known to need no key: named by --ignore."""
    late: tuple[str, ...] = ()
    """FastAPI's dependencies that commit after the answer was kept."""

    def covered(self, allow_default: bool) -> bool:
        fine = ("enforces", "accepts", "exempt")
        return self.waived or self.keys in fine or (allow_default and self.keys == "default")


def audit(app: Any, guard: Guard | None, waived: Sequence[tuple[str, str]] = ()) -> list[RouteKeys]:
    """Every route of ``app`` that changes something, in the order of its router."""
    every = inventory(app, guard) or _without_a_router(app, guard)
    found: list[RouteKeys] = []
    for each in every:
        if each.method not in SAFE_METHODS:
            keys, place = _keys(each), (each.method, each.path)
            ignored = any(fits(*place, waiver) for waiver in waived)
            late = () if keys in ("exempt", "ignores") else each.late
            found.append(RouteKeys(*place, keys, each.said, each.policy, ignored, late))
    return found


def fits(method: str, path: str, waiver: tuple[str, str]) -> bool:
    return waiver[0] in ("*", method) and fnmatchcase(path, waiver[1])


def _keys(each: RouteMethod) -> Keys:
    policy = each.policy
    # What takes any method is as good as its POST: that is what a client would send a key with.
    method = "POST" if each.method == "*" else each.method
    if policy is not None and not policy.methods:
        return "exempt"
    if policy is None or method not in policy.methods:
        return "ignores"
    if policy.required:
        return "enforces"
    return "default" if each.said == "default" else "accepts"


def _without_a_router(app: Any, guard: Guard | None) -> list[RouteMethod]:
    """The routes of an application without a router: those its guard lists, and its default."""
    if guard is None:
        guards = (getattr(layer, "guard", None) for layer in layers(app))
        guard = next((each for each in guards if isinstance(each, Guard)), None)
    if guard is None:
        raise ConfigurationError(
            "neither routes nor a guard were found in it: name the application that has routes, or "
            "its guard with --guard"
        )
    listed = [RouteMethod(each.method, each.path, each.policy, "listed") for each in guard.routes]
    return [*listed, RouteMethod("*", "/{path:path}", guard.policy, "default")]


def key_from(each: RouteKeys) -> tuple[str, ...]:
    """Where its key is looked for."""
    taken = each.policy is not None and each.keys not in ("exempt", "ignores")
    return each.policy.key_places.described if each.policy is not None and taken else ()
