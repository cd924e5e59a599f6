"""Tagged routes that no key protects, found where all routes are known: at start-up.

Most of them refuse their requests (`ruling`). Their operator should hear of it before those come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from semel.core.policy import SAFE_METHODS
from semel.log import log
from semel.web.inventory import Entry, entries
from semel.web.ruling import name_of
from semel.web.tags import policy_of, tag_holder

Endpoint = Callable[..., Any]


def tell_unguarded(apps: Iterable[Any], tagged: Sequence[Endpoint], all_there: bool) -> None:
    """Say which endpoints of ``apps`` and of those that a guard has tagged are not guarded.

    ``all_there``: no more applications are to come, in which the others may be found.
    """
    try:
        known = [entry for app in apps for entry in entries(app)]
    except Exception:
        log.warning("semel: the routes of an application could not be read", exc_info=True)
        return
    for entry in filter(leaves_out, known):
        log.warning("semel: %s", explained(entry))
    answering = {id(each) for entry in known for each in _endpoints(entry)}
    lost = [each for each in tagged if id(each) not in answering]
    untagged = [each for each in lost if id(getattr(each, "__wrapped__", each)) in answering]
    if untagged:
        log.error(
            "semel: these answer requests without their tags: %s. Put @guard.route() below the "
            "framework's own decorator, next to the function",
            _names(untagged),
        )
    elsewhere = [each for each in lost if each not in untagged]
    if all_there and known and elsewhere:
        log.warning(
            "semel: tagged by guard.route(), and found in no application that this guard stands "
            "around: %s. Reached around the guard, they refuse",
            _names(elsewhere),
        )


def _names(endpoints: Sequence[Endpoint]) -> str:
    return ", ".join(map(name_of, endpoints))


def leaves_out(entry: Entry) -> bool:
    """Whether a route answers a method that the policy on its endpoint does not name."""
    policy = entry.policy or policy_of(entry.endpoint, entry.method)
    if policy is None or not policy.methods or entry.every:
        return False
    return entry.method not in ("*", *SAFE_METHODS, *policy.methods)


def explained(entry: Entry) -> str:
    return (
        f"{entry.method} {entry.path} is tagged with a policy that leaves {entry.method} out, so "
        "that no key protects it: name it in methods= of the policy, as in "
        f"methods={{{entry.method!r}}}"
    )


def _endpoints(entry: Entry) -> Iterator[Any]:
    """What answers, below all that wraps it."""
    for each in (entry.endpoint, tag_holder(entry.endpoint, entry.method)):
        for _ in range(32):
            yield each
            each = getattr(each, "func", None) or getattr(each, "__wrapped__", None)
            if each is None:
                break
