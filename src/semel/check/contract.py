"""What the API declares about its keys: its contract, or ``x-idempotency`` of its OpenAPI document
(docs/reference/contract.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from semel.check.json_values import is_array, is_object
from semel.check.run import CheckRun
from semel.check.wire import NoReply, WireRequest
from semel.core.request.path_pattern import CONTRACT_ADDRESS, foreign_pattern
from semel.errors import ConfigurationError


def declared_promises(run: CheckRun) -> Mapping[str, Any] | None:
    """The promises on the operation; an empty mapping where a contract leaves it out, None where
    there is no contract."""
    method, target = run.operation.request.method, run.operation.request.target
    if run.operation.promises is not None:
        return run.operation.promises
    try:
        answer = run.caller.send(WireRequest("GET", CONTRACT_ADDRESS, run.credentials))
    except NoReply:
        return None
    document = answer.document
    if answer.status != 200 or not is_object(document) or document.get("version") != 1:
        return None
    return _promises_on(document, method, target)


def _promises_on(document: Mapping[str, Any], method: str, target: str) -> Mapping[str, Any]:
    path = unquote(target.partition("?")[0])
    routes = document.get("routes")
    for route in routes if is_array(routes) else ():
        if not is_object(route) or route.get("method") not in (method, "*"):
            continue
        if _fits(str(route.get("path")), path):
            return _for_method(route, method)
    return _for_method(document.get("default"), method)


def _for_method(promises: object, method: str) -> Mapping[str, Any]:
    """Promises hold for the methods that they name; none are made where there are none."""
    methods = promises.get("methods") if is_object(promises) else None
    held = is_object(promises) and is_array(methods) and method in methods
    return promises if held and is_object(promises) else {}


def _fits(named: str, path: str) -> bool:
    """Parameters in another syntax than the contract's fit nothing but themselves, and so do those
    that could be matched in too many ways."""
    try:
        return foreign_pattern(named).fullmatch(path) is not None
    except ConfigurationError:
        return named == path
