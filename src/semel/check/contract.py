"""What the API declares about its keys: ``/.well-known/idempotency``, or ``x-idempotency`` of its
OpenAPI document (docs/reference/contract.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from semel.check.json_values import is_array, is_object
from semel.check.run import CheckRun
from semel.check.wire import NoReply, WireRequest

WELL_KNOWN: Final = "/.well-known/idempotency"
_SEGMENT: Final = re.compile(r"\\\{\w+(:path)?\\\}")


def declared_promises(run: CheckRun) -> Mapping[str, Any] | None:
    """The promises on the operation; an empty mapping where a contract leaves it out, None where
    there is no contract."""
    if run.operation.promises is not None:
        return run.operation.promises
    try:
        answer = run.caller.send(WireRequest("GET", WELL_KNOWN, run.credentials))
    except NoReply:
        return None
    document = answer.document
    if answer.status != 200 or not is_object(document) or document.get("version") != 1:
        return None
    return _promises_on(document, run.operation.request.method, run.operation.request.target)


def _promises_on(document: Mapping[str, Any], method: str, target: str) -> Mapping[str, Any]:
    path = target.partition("?")[0]
    routes = document.get("routes")
    for route in routes if is_array(routes) else ():
        if not is_object(route) or route.get("method") not in (method, "*"):
            continue
        if re.fullmatch(_pattern(str(route.get("path"))), path):
            return _for_method(route, method)
    return _for_method(document.get("default"), method)


def _for_method(promises: object, method: str) -> Mapping[str, Any]:
    """Promises hold for the methods that they name; none are made where there are none."""
    methods = promises.get("methods") if is_object(promises) else None
    held = is_object(promises) and is_array(methods) and method in methods
    return promises if held and is_object(promises) else {}


def _pattern(path: str) -> str:
    return _SEGMENT.sub(lambda found: ".+" if found[1] else "[^/]+", re.escape(path))
