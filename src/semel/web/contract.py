"""The contract: what a client may rely on, told from the policies that are enforced.

The format is in docs/reference/contract.md. Every statement can be checked from outside. Nothing
in it depends on a request, so nothing of a tenant can be in it.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.settle import DID_NOT_EXECUTE
from semel.core.policy import Policy
from semel.core.records import Response
from semel.core.request.key_places import BodyField, KeyPlace
from semel.core.request.keys import MAX_KEY_LENGTH, STRONG_KEY_LENGTH
from semel.web.inventory import inventory

if TYPE_CHECKING:
    from semel.guard import Guard

VERSION: Final = 1
"""Of the format."""


def contract(guard: Guard, app: Any = None) -> dict[str, Any]:
    """What each route with a policy of its own promises, and what holds on all others.

    ``app``: the application, for the policies that are tagged on its endpoints.
    """
    found = [(each.method, each.path, each.policy) for each in guard.routes]
    if app is not None:
        tagged = [each for each in inventory(app, guard) if each.said == "tag" and each.policy]
        found += [(each.method, each.path, each.policy or guard.policy) for each in tagged]
    routes = [
        {"method": method, "path": path, **(promises(policy) if _counts(method, policy) else NONE)}
        for method, path, policy in found
    ]
    default = promises(guard.policy) if _counts("*", guard.policy) else None
    return {"version": VERSION, "routes": routes, "default": default}


NONE: Final[dict[str, Any]] = {"methods": []}
"""The promises of a route whose keys do not count. Left out, it would have those of the default."""


def _counts(method: str, policy: Policy) -> bool:
    """Whether keys are enforced there: not in shadow, not exempt, with that method."""
    taken = method in policy.methods or (method == "*" and bool(policy.methods))
    return taken and not policy.shadow


def promises(policy: Policy) -> dict[str, Any]:
    """What a policy promises, and nothing else of it."""
    lasting = bool(policy.tombstone_micros)
    waits = policy.patience_micros / 1_000_000
    return {
        "methods": sorted(policy.methods),
        "scope": "endpoint" if policy.scope == "route" else "caller",
        "key": _key(policy),
        "lifetime": policy.retention_micros // 1_000_000,
        "after_lifetime": {"status": 410} if lasting else None,
        "remembered": (policy.retention_micros + policy.tombstone_micros) // 1_000_000,
        "in_flight": {"status": 202 if policy.in_flight == "accept" else 409, "waits": waits},
        "mismatch": {"status": policy.mismatch_status},
        "answers": _answers(policy),
        "replay": {"header": policy.replay_header, "value": "true"},
    }


def _key(policy: Policy) -> dict[str, Any]:
    shortest = STRONG_KEY_LENGTH if policy.key == "strong" else 1
    form: dict[str, Any] = {"min_length": shortest, "max_length": MAX_KEY_LENGTH}
    if policy.key == "uuid":
        form = {"uuid_versions": [4, 7]}
    elif callable(policy.key):
        form = {**form, "further_rules": True}
    return {
        "required": policy.required,
        "places": [_place(place) for place in policy.key_places.listed],
        "quoted_only": policy.strict,
        **form,
    }


def _place(place: KeyPlace) -> dict[str, str]:
    if isinstance(place, str):
        return {"in": "header", "name": place}
    return (
        {"in": "body", "pointer": place.pointer}
        if isinstance(place, BodyField)
        else {"in": "request"}
    )


def _answers(policy: Policy) -> dict[str, Any] | None:
    """What becomes of answers, by their status; None where a function decides."""
    if callable(policy.keep):
        return None
    fates: dict[str, list[str]] = {"kept": [], "free": [], "unsettled": []}
    for fate, statuses in groupby(range(200, 600), lambda status: _fate(policy, status)):
        first, *rest = statuses
        fates[fate].append(f"{first}-{rest[-1]}" if rest else str(first))
    return fates


def _fate(policy: Policy, status: int) -> str:
    keep = policy.keep
    kept = status < 500 and status not in DID_NOT_EXECUTE
    if keep is not None and not callable(keep):
        kept = status in keep
    if kept:
        return "kept"
    return _FATES[policy.after_error] if status >= 500 else "free"


_FATES: Final = {"keep": "kept", "release": "free", "unknown": "unsettled"}


def told(guard: Guard, app: Any, method: str) -> Response:
    """The answer at the well-known address."""
    if method not in ("GET", "HEAD"):
        headers = ((b"allow", b"GET, HEAD"), (b"content-type", b"text/plain"))
        return Response(405, headers, b"GET or HEAD\n")
    headers = ((b"content-type", b"application/json"), (b"cache-control", b"max-age=300"))
    body = json.dumps(contract(guard, app)).encode()
    if method == "HEAD":  # not every WSGI server leaves its body out
        return Response(200, (*headers, (b"content-length", b"%d" % len(body))), b"")
    return Response(200, headers, body)
