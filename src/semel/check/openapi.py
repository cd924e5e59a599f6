"""The operations of an OpenAPI document that take keys, each with a body that may be sent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote, unquote

from semel.check.json_values import is_array, is_object
from semel.check.run import CheckedOperation
from semel.check.wire import WireRequest
from semel.errors import ConfigurationError

METHODS: Final = ("post", "patch", "put", "delete")
DEEPEST: Final = 12
MOST_PARTS: Final = 2000
"""Values of one body. Schemas that name each other many times would make one without end."""
LONGEST_BODY: Final = 256 * 1024
LONGEST_TEXT: Final = 10_000
PATTERN_TIMEOUT: Final = 20.0
_TEXTS: Final = {
    "date": "2030-01-01",
    "date-time": "2030-01-01T00:00:00Z",
    "email": "check@example.org",
    "uuid": "7f1f0a3e-6f0b-4c53-9d0a-2f6f2b0d6c11",
    "uri": "https://example.org/",
}
_BY_HAND: Final = "give a body with --request"


def read_openapi(text: str) -> Mapping[str, Any]:
    """The document, from JSON, or from YAML where PyYAML is installed."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ConfigurationError("the OpenAPI document is nested too deeply") from None
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
    except RecursionError:
        raise ConfigurationError("the OpenAPI document is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"the OpenAPI document cannot be read: {error}") from error


def keyed_operations(
    document: Mapping[str, Any], values: Mapping[str, str], prefix: str = ""
) -> tuple[list[CheckedOperation], dict[str, str]]:
    """Those that can be sent, and for the others why not. ``values`` are of path parameters."""
    ready: list[CheckedOperation] = []
    left_out: dict[str, str] = {}
    for path, method, operation in _operations(document):
        label = f"{method.upper()} {path}"
        try:
            made = _ready(document, path, method, operation, values, prefix)
        except LookupError as missing:
            left_out[label] = str(missing.args[0])
        except (ConfigurationError, TypeError, AttributeError, ValueError, RecursionError) as error:
            # Whatever a document may have in the wrong place.
            left_out[label] = f"it is not as OpenAPI has it ({error!s:.100}): {_BY_HAND}"
        else:
            ready += [] if made is None else [made]
    return ready, left_out


def _ready(
    document: Mapping[str, Any],
    path: str,
    method: str,
    operation: Mapping[str, Any],
    values: Mapping[str, str],
    prefix: str,
) -> CheckedOperation | None:
    """The operation with a body; None where it takes no keys, a `LookupError` that says what is
    missing."""
    parameters = [_resolved(document, each) for each in operation["parameters"]]
    named = {str(each.get("name")).lower() for each in parameters if each.get("in") == "header"}
    if "idempotency-key" not in named and "x-idempotency" not in operation:
        return None
    target = prefix + _filled(path, parameters, values)
    kind, body = _body(document, operation)
    headers = (("Content-Type", kind),) if kind else ()
    request = WireRequest(method.upper(), quote(target, safe="/%:@!$&'()*+,;=~"), headers, body)
    said = operation.get("x-idempotency")
    promises = said if is_object(said) else None
    return CheckedOperation(request, label=f"{method.upper()} {path}", promises=promises)


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS if is_object(item) else ():
            if is_object(found := item.get(method)):
                shared = [*_list(item.get("parameters")), *_list(found.get("parameters"))]
                yield str(path), method, {**found, "parameters": shared}


def _list(value: object) -> list[Any]:
    return value if is_array(value) else []


def _filled(path: str, parameters: list[Mapping[str, Any]], values: Mapping[str, str]) -> str:
    """The path with its parameters; one without a value is a `LookupError` that says so."""
    known = {each.get("name"): each for each in parameters if each.get("in") == "path"}

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
        made = _Maker(document).made(media.get("schema", {}))
    return kind, _encoded(made)


def _encoded(value: Any) -> bytes:
    """The value as JSON. In YAML a few lines with aliases can stand for billions of values."""
    body = ""
    for piece in json.JSONEncoder().iterencode(value):
        body += piece
        if len(body) > LONGEST_BODY:
            raise LookupError(f"its example is too large: {_BY_HAND}")
    return body.encode()


def _resolved(document: Mapping[str, Any], node: Any) -> Mapping[str, Any]:
    for _ in range(DEEPEST):
        if not is_object(node):
            raise LookupError(f"a part of it is no object: {_BY_HAND}")
        reference = node.get("$ref")
        if reference is None:
            return node
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise LookupError(f"its $ref leads to another document, which is not read: {_BY_HAND}")
        node = document
        for step in unquote(reference[2:]).split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not is_object(node) or name not in node:
                raise LookupError(f"its $ref {reference:.100} leads nowhere: {_BY_HAND}")
            node = node[name]
    raise LookupError(f"its $ref leads in a circle: {_BY_HAND}")


class _Maker:
    """Makes a value that a schema allows, as small as can be: required members only, and at most
    `MOST_PARTS` parts."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._parts = 0

    def made(self, schema: Any, depth: int = 0) -> Any:
        schema = _resolved(self._document, schema)
        self._parts += 1
        if depth > DEEPEST or self._parts > MOST_PARTS:
            raise LookupError(f"its schema is too deep, or too large: {_BY_HAND}")
        for name in ("example", "const", "default"):
            if name in schema:
                return schema[name]
        for name in ("examples", "enum"):
            if is_array(found := schema.get(name)) and found:
                return found[0]
        if is_array(parts := schema.get("allOf")) and parts:
            return self._merged(schema, parts, depth)
        for name in ("oneOf", "anyOf"):
            if is_array(parts := schema.get(name)) and parts:
                return self.made(parts[0], depth + 1)
        return self._of_type(schema, depth)

    def _merged(self, schema: Mapping[str, Any], parts: list[Any], depth: int) -> Any:
        """All parts together, with the members that stand beside them."""
        made = [self.made(each, depth + 1) for each in parts]
        if "properties" in schema:
            made.append(self._of_type({**schema, "type": "object"}, depth))
        objects = [each for each in made if is_object(each)]
        return {k: v for each in objects for k, v in each.items()} if objects else made[0]

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        kind = next((each for each in kind if each != "null"), None) if is_array(kind) else kind
        match kind:
            case "object":
                members = schema.get("properties", {})
                wanted = _list(schema.get("required"))
                return {each: self.made(members.get(each, {}), depth + 1) for each in wanted}
            case "array":
                count = min(max(int(schema.get("minItems", 0)), 0), MOST_PARTS)
                return [self.made(schema.get("items", {}), depth + 1) for _ in range(count)]
            case "integer" | "number":
                return _number(schema)
            case "boolean":
                return True
            case "string":
                return _text(schema)
            case _:
                return None


def _number(schema: Mapping[str, Any]) -> int | float:
    """The least one that is allowed, from 1 on."""
    above = schema.get("exclusiveMinimum")
    least = schema.get("minimum", 1)
    if above is True:  # as OpenAPI 3.0 writes it
        above = least
    least = max(1, least) if above in (None, False) else int(above) + 1
    most = schema.get("maximum", least)
    least = most if most < least else least
    step = schema.get("multipleOf") or 1
    return least if not least % step else least - least % step + step


def _text(schema: Mapping[str, Any]) -> str:
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", LONGEST_TEXT))
    if least > LONGEST_TEXT:
        raise LookupError(f"its schema wants a text of {least} characters: {_BY_HAND}")
    if "pattern" in schema:
        return _by_hypothesis(str(schema["pattern"]), least, min(most, LONGEST_TEXT))
    text = _TEXTS.get(str(schema.get("format")), "check")
    return text.ljust(least, "x")[:most]


_FIND: Final = """
import json, sys
from hypothesis import find
from hypothesis.strategies import from_regex
pattern, least, most = json.loads(sys.argv[1])
fits = lambda text: least <= len(text) <= most and text.isprintable()
print(json.dumps(find(from_regex(pattern), fits)))
"""


def _by_hypothesis(pattern: str, least: int, most: int) -> str:
    """The simplest text of a pattern, made by a library, in a process of its own: some patterns are
    matched for hours, and nothing else ends that."""
    if find_spec("hypothesis") is None:
        raise LookupError(f"its schema has a pattern: pip install 'semel[check]', or {_BY_HAND}")
    arguments = [sys.executable, "-c", _FIND, json.dumps([pattern, least, most])]
    with TemporaryDirectory() as folder:  # the library leaves files where it runs
        try:
            done = subprocess.run(
                arguments, cwd=folder, capture_output=True, timeout=PATTERN_TIMEOUT, check=True
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise LookupError(f"no text was found for its pattern: {_BY_HAND}") from error
    return str(json.loads(done.stdout))
