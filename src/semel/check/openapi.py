"""The operations of an OpenAPI document that take keys, each with a body that may be sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from semel.check.json_values import is_array, is_object
from semel.check.run import CheckedOperation
from semel.check.wire import WireRequest
from semel.errors import ConfigurationError

METHODS: Final = ("post", "patch", "put", "delete")
DEEPEST: Final = 12
_TEXTS: Final = {
    "date": "2030-01-01",
    "date-time": "2030-01-01T00:00:00Z",
    "email": "check@example.org",
    "uuid": "7f1f0a3e-6f0b-4c53-9d0a-2f6f2b0d6c11",
    "uri": "https://example.org/",
}


def read_openapi(text: str) -> Mapping[str, Any]:
    """The document, from JSON, or from YAML where PyYAML is installed."""
    try:
        document = json.loads(text)
    except ValueError:
        document = _yaml(text)
    if not is_object(document) or not is_object(document.get("paths")):
        raise ConfigurationError("this is no OpenAPI document: it has no paths")
    return document


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(
            "the OpenAPI document is no JSON; for YAML install: pip install pyyaml"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the OpenAPI document cannot be read: {error}") from error


def keyed_operations(
    document: Mapping[str, Any], values: Mapping[str, str], prefix: str = ""
) -> tuple[list[CheckedOperation], dict[str, str]]:
    """Those that can be sent, and for the others why not. ``values`` are of path parameters."""
    ready: list[CheckedOperation] = []
    left_out: dict[str, str] = {}
    for path, method, operation in _operations(document):
        label = f"{method.upper()} {path}"
        parameters = [_resolved(document, each) for each in operation["parameters"]]
        if not _takes_keys(operation, parameters):
            continue
        try:
            target = prefix + _filled(path, parameters, values)
            kind, body = _body(document, operation)
        except LookupError as missing:
            left_out[label] = str(missing.args[0])
            continue
        headers = (("Content-Type", kind),) if kind else ()
        request = WireRequest(method.upper(), target, headers, body)
        said = operation.get("x-idempotency")
        promises = said if is_object(said) else None
        ready.append(CheckedOperation(request, label=label, promises=promises))
    return ready, left_out


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if is_object(found := item.get(method)):
                shared = [*item.get("parameters", ()), *found.get("parameters", ())]
                yield path, method, {**found, "parameters": shared}


def _takes_keys(operation: Mapping[str, Any], parameters: list[Mapping[str, Any]]) -> bool:
    named = {each["name"].lower() for each in parameters if each.get("in") == "header"}
    return "idempotency-key" in named or "x-idempotency" in operation


def _filled(path: str, parameters: list[Mapping[str, Any]], values: Mapping[str, str]) -> str:
    """The path with its parameters; one without a value is a `LookupError` that says so."""
    known = {each["name"]: each for each in parameters if each.get("in") == "path"}

    def value(match: re.Match[str]) -> str:
        name = match[1]
        given = values.get(name, known.get(name, {}).get("example"))
        if given is None:
            raise LookupError(f"the path needs {name}: give --path {name}=VALUE")
        return str(given)

    return re.sub(r"\{([^}]+)\}", value, path)


def _body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> tuple[str, bytes]:
    """Its media type and a body: the example, else one made from the schema."""
    content = _resolved(document, operation.get("requestBody", {})).get("content", {})
    if not content:
        return "", b""
    kind = next((each for each in content if each.endswith("json")), None)
    if kind is None:
        raise LookupError(f"its body is {', '.join(content)}: give one with --request")
    media = content[kind]
    examples = [_resolved(document, each) for each in media.get("examples", {}).values()]
    if "example" in media:
        made = media["example"]
    elif examples and "value" in examples[0]:
        made = examples[0]["value"]
    else:
        made = example_of(document, media.get("schema", {}))
    return kind, json.dumps(made).encode()


def _resolved(document: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(DEEPEST):
        reference = node.get("$ref")
        if reference is None:
            return node
        found: Any = document
        for step in str(reference).removeprefix("#/").split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~"), {})
        node = found
    raise LookupError("its $ref leads in a circle: give a body with --request")


def example_of(document: Mapping[str, Any], schema: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that the schema allows, as small as can be: required members only."""
    schema = _resolved(document, schema)
    if depth > DEEPEST:
        raise LookupError("its schema is too deep: give a body with --request")
    for name in ("example", "const", "default"):
        if name in schema:
            return schema[name]
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    for name in ("allOf", "oneOf", "anyOf"):
        if schema.get(name):
            parts = [example_of(document, each, depth + 1) for each in schema[name]]
            merged = [part for part in parts if is_object(part)]
            return (
                {k: v for part in merged for k, v in part.items()} if name == "allOf" else parts[0]
            )
    return _of_type(document, schema, depth)


def _of_type(document: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else None)
    kind = next((each for each in kind if each != "null"), None) if is_array(kind) else kind
    match kind:
        case "object":
            members: Mapping[str, Any] = schema.get("properties", {})
            wanted = schema.get("required", ())
            return {each: example_of(document, members.get(each, {}), depth + 1) for each in wanted}
        case "array":
            count = max(int(schema.get("minItems", 0)), 0)
            return [example_of(document, schema.get("items", {}), depth + 1) for _ in range(count)]
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            return int(least) + 1 if "exclusiveMinimum" in schema else max(1, least)
        case "boolean":
            return True
        case "string":
            return _text(schema)
        case _:
            return None


def _text(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return _by_hypothesis(schema)
    text = _TEXTS.get(str(schema.get("format")), "check")
    return text.ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 10_000))]


def _by_hypothesis(schema: Mapping[str, Any]) -> str:
    """The simplest text of a schema with a pattern; a library makes it, where there is one."""
    try:
        from hypothesis import find
        from hypothesis.strategies import from_regex
    except ModuleNotFoundError:
        raise LookupError(
            "its schema has a pattern: pip install 'semel[check]', or give a body with --request"
        ) from None
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 10_000))
    texts = from_regex(str(schema["pattern"]))
    return str(find(texts, lambda text: least <= len(text) <= most and text.isprintable()))
