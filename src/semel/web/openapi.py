"""Describes routes that take keys in an OpenAPI document (3.0 or 3.1).

It is the same for every framework: plain dictionaries, made from a route's policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.problems import CATALOGUE
from semel.core.exchange.refusal_shapes import problem_document
from semel.core.frozen import replace
from semel.core.policy import Policy
from semel.core.request.key_places import DEFAULT_HEADER, BodyField
from semel.core.request.keys import MAX_HEADER_BYTES, MAX_KEY_LENGTH, STRONG_KEY_LENGTH
from semel.web.contract import promises
from semel.web.inventory import inventory

if TYPE_CHECKING:
    from semel.guard import Guard

PROBLEM: Final = "IdempotencyProblem"
"""The name of the problem documents' schema among the components."""
_DOCUMENTS: Final = (None, problem_document)
"""The shapes of refusals that are problem documents."""

_UUID: Final = (
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[47][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
)


def describe(document: MutableMapping[str, Any], app: Any, guard: Guard) -> None:
    """Add the key, its answers and their headers to every operation that takes keys."""
    described = False
    for entry in inventory(app, guard):
        template = re.sub(r"\{(\w+):\w+\}", r"{\1}", entry.path)  # without convertors
        path: Any = document.get("paths", {}).get(template, {})
        operation: Any = path.get(entry.method.lower())
        if operation is None or entry.policy is None or entry.coverage == "ignores":
            continue
        policy = guard.bind(entry.policy)
        extend(operation, policy, guard)
        if guard.contract_at and not policy.shadow:
            operation["x-idempotency"] = promises(policy)
        described = described or policy.refusal in _DOCUMENTS
    if described:
        components: Any = document.setdefault("components", {})
        components.setdefault("schemas", {})[PROBLEM] = dict(_PROBLEM_SCHEMA)


def extend(operation: MutableMapping[str, Any], policy: Policy, guard: Guard) -> None:
    """Describe keys in one operation; what the document says already stays."""
    places = policy.key_places.listed
    headers = {place.lower(): place for place in places if isinstance(place, str)}
    if headers:
        parameters: list[Any] = operation.setdefault("parameters", [])
        # An endpoint that reads the header itself has announced it: once is enough.
        parameters[:] = [
            given
            for given in parameters
            if given.get("in") != "header" or given.get("name", "").lower() not in headers
        ]
        parameters += [parameter(policy, name) for name in headers.values()]
    for place in places:
        if isinstance(place, BodyField):
            _describe_field(operation, policy, place)
    responses: Any = operation.setdefault("responses", {})
    answer_headers = {policy.replay_header: _REPLAYED, "Idempotency-Expires": _EXPIRES}
    for status, response in responses.items():
        if str(status).startswith("2"):
            response.setdefault("headers", {}).update(answer_headers)
    for status, codes in refusals(policy, guard).items():
        titles = ", ".join(CATALOGUE[code].title for code in codes)
        phrase = f"{HTTPStatus(int(status)).phrase}: {titles}."
        response = responses.setdefault(status, {"description": phrase})
        if policy.refusal in _DOCUMENTS:  # other shapes are the API's own, and described by it
            code = {"type": "object", "properties": {"code": {"type": "string", "enum": codes}}}
            schema = {"allOf": [{"$ref": f"#/components/schemas/{PROBLEM}"}, code]}
            response.setdefault("content", {})["application/problem+json"] = {"schema": schema}
        if status in _LATER:
            response.setdefault("headers", {})["Retry-After"] = _RETRY_AFTER
    if policy.in_flight == "accept":
        where = {"description": "Where to ask for the answer.", "schema": {"type": "string"}}
        accepted = {
            "description": "Accepted: the operation is under way.",
            "headers": {"Location": where, "Retry-After": _RETRY_AFTER},
        }
        responses.setdefault("202", accepted)


def parameter(policy: Policy, name: str = DEFAULT_HEADER) -> dict[str, Any]:
    """The header, in the format that the route asks for."""
    return {
        "name": name,
        "in": "header",
        "required": _is_needed(policy),
        "description": _what_for(policy),
        "schema": key_schema(policy),
    }


def _is_needed(policy: Policy) -> bool:
    """A key is required, and there is one place for it."""
    return policy.required and len(policy.key_places.listed) == 1


def _what_for(policy: Policy) -> str:
    what = "A UUID of version 4 or 7" if policy.key == "uuid" else "A string of your own making"
    need = "Required" if policy.required else "Optional"
    if policy.required and not _is_needed(policy):
        need = "Required, here or in another place"
    return (
        f"{need}. {what}, one for each operation: a retry with the same key and the same "
        "request gets the first answer and has no second effect. An answer is kept for "
        f"{_duration_in_words(policy.retention)}."
    )


def _describe_field(operation: MutableMapping[str, Any], policy: Policy, field: BodyField) -> None:
    """Add the key to what the body must be: a property, within those that lead to it."""
    bare = replace(policy, strict=False)  # quotes are the header's syntax
    schema: dict[str, Any] = {**key_schema(bare), "description": _what_for(policy)}
    for step in reversed(field.steps):
        schema = {"type": "object", "properties": {step: schema}}
        if _is_needed(policy):
            schema["required"] = [step]
    body: Any = operation.setdefault("requestBody", {})
    content: Any = body.setdefault("content", {"application/json": {}})
    if _is_needed(policy):
        body["required"] = True
    for media in content.values():
        told = media.get("schema")
        media["schema"] = schema if not told else {"allOf": [told, schema]}


def key_schema(policy: Policy) -> dict[str, Any]:
    """What a client can check before it sends. The server takes the key quoted, too."""
    if policy.key == "uuid":
        pattern = f'^"{_UUID}"$' if policy.strict else f"^{_UUID}$"
        form = {} if policy.strict else {"format": "uuid"}
        return {"type": "string", "pattern": pattern, **form}
    shortest = STRONG_KEY_LENGTH if policy.key == "strong" else 1
    if policy.strict:
        sizes = {"minLength": shortest + 2, "maxLength": MAX_HEADER_BYTES}
        return {"type": "string", **sizes, "pattern": '^".*"$'}
    return {"type": "string", "minLength": shortest, "maxLength": MAX_KEY_LENGTH}


def _duration_in_words(duration: timedelta) -> str:
    seconds = duration // timedelta(seconds=1)
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds % size == 0 and seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


def refusals(policy: Policy, guard: Guard) -> dict[str, list[str]]:
    """The codes of the refusals a client may meet, by status."""
    codes = {
        "missing-key": policy.required,
        "malformed-key": True,
        "key-reused": True,
        "body-too-large": True,
        "unreadable-body": policy.key_in_body or bool(policy.payload),
        "tenant-missing": guard.tenant is not None,
        "in-flight": policy.in_flight != "accept",
        "attempt-failed": policy.in_flight == "wait",
        "abandoned": policy.mode == "deferred",
        "outcome-unknown": policy.mode != "atomic",
        "body-not-kept": True,
        "replay-impossible": policy.after_retire == "refuse",
        "key-expired": bool(policy.tombstone_micros) or policy.age_micros is not None,
        "too-fast": guard.limits is not None,
        "too-many-keys": guard.limits is not None,
        "store-unavailable": True,
        "not-executed": True,
        "completion-not-durable": True,
    }
    found: dict[str, list[str]] = {}
    for code in (code for code, possible in codes.items() if possible):
        status = policy.mismatch_status if code == "key-reused" else CATALOGUE[code].status
        found.setdefault(str(status), []).append(code)
    return dict(sorted(found.items()))


_LATER: Final = ("409", "429", "503")
"""Statuses that may come with a Retry-After."""
_RETRY_AFTER: Final[Mapping[str, Any]] = {
    "description": "Seconds to wait before the same request is sent again, where that may help.",
    "schema": {"type": "integer", "minimum": 1},
}
_REPLAYED: Final[Mapping[str, Any]] = {
    "description": "`true` when this is an earlier answer to the same key.",
    "schema": {"type": "string", "enum": ["true", "false"]},
}
_EXPIRES: Final[Mapping[str, Any]] = {
    "description": "Until when the answer is kept.",
    "schema": {"type": "string"},
}
_TEXT: Final = {"type": "string"}
_PROBLEM_SCHEMA: Final[Mapping[str, Any]] = {
    "title": "Idempotency problem",
    "description": "Why a request with an Idempotency-Key was not executed now.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "code": {"type": "string", "description": "Stable; for programs."},
        "retryable": {
            "type": "boolean",
            "description": "Whether the same request with the same key may succeed later.",
        },
    },
}
"""RFC 9457, with semel's two members."""
