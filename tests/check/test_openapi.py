"""OpenAPI documents, right and wrong: an operation is ready to be sent, or left out and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from semel.check import openapi
from semel.check.openapi import keyed_operations, read_openapi
from semel.cli.commands import semel
from semel.errors import ConfigurationError

KEY = {"name": "Idempotency-Key", "in": "header"}


def document(schema: Any, path: str = "/pay", **parts: Any) -> dict[str, Any]:
    media = {"application/json": {"schema": schema}}
    operation = {"parameters": [KEY], "requestBody": {"content": media}}
    return {"openapi": "3.1.0", "paths": {path: {"post": operation}}, **parts}


def made(schema: Any, **parts: Any) -> Any:
    ready, left_out = keyed_operations(document(schema, **parts), {})
    assert not left_out
    return json.loads(ready[0].request.body)


def reason(whole: Any) -> str:
    ready, left_out = keyed_operations(whole, {})
    assert not ready
    (found,) = left_out.values()
    return found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5}, 6),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, 6),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
        ({"type": ["null", "string"], "minLength": 8}, "checkxxx"),
        ({"type": "string", "maxLength": 2}, "ch"),
        ({"type": "array", "minItems": 2, "items": {"const": 4}}, [4, 4]),
        ({"oneOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, "a"),
        (
            {
                "allOf": [{"type": "object", "required": ["a"], "properties": {"a": {"const": 1}}}],
                "properties": {"b": {"const": 2}},
                "required": ["b"],
            },
            {"a": 1, "b": 2},
        ),
    ],
)
def test_the_smallest_value_of_a_schema(schema: Any, value: Any) -> None:
    assert made(schema) == value


LOOP = {"$ref": "#/components/schemas/A"}


@pytest.mark.parametrize(
    ("schema", "schemas", "sentence"),
    [
        (LOOP, {"A": LOOP}, "leads in a circle"),
        (
            LOOP,
            {"A": {"type": "object", "required": ["a"], "properties": {"a": LOOP}}},
            "too deep, or too large",
        ),
        ({"$ref": "https://example.org/schema.json#/A"}, {}, "another document"),
        ({"$ref": "other.yaml#/A"}, {}, "another document"),
        ({"$ref": "#/components/schemas/None"}, {}, "leads nowhere"),
        ({"$ref": 7}, {}, "another document"),
        ({"allOf": [LOOP] * 9}, {"A": {"allOf": [{"$ref": "#/components/schemas/B"}] * 9},
          "B": {"allOf": [{"$ref": "#/components/schemas/C"}] * 9},
          "C": {"allOf": [{"allOf": [{"type": "object"}] * 9}] * 9}}, "too deep, or too large"),
        ({"type": "string", "minLength": 10**9}, {}, "1000000000 characters"),
        ({"type": "array", "minItems": 10**9, "items": {}}, {}, "too deep, or too large"),
        ({"type": "integer", "minimum": "many"}, {}, "not as OpenAPI has it"),
        ({"type": "object", "required": ["a"], "properties": []}, {}, "not as OpenAPI has it"),
        ([], {}, "no object"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_made_is_left_out(schema: Any, schemas: Any, sentence: str) -> None:
    said = reason(document(schema, components={"schemas": schemas}))
    assert sentence in said
    assert "--request" in said


def test_a_path_with_line_breaks_is_sent_as_it_must_be() -> None:
    ready, _ = keyed_operations(document({"const": 1}, "/pay\r\nX-Evil: 1"), {})
    assert ready[0].request.target == "/pay%0D%0AX-Evil:%201"


def test_other_parts_in_the_wrong_place_are_left_out_or_passed_over() -> None:
    whole = {
        "paths": {
            "/a": 7,
            "/b": {"post": []},
            "/c": {"post": {"parameters": [7]}},
            "/d": {"post": {"parameters": "none", "x-idempotency": {}, "requestBody": 7}},
            "/e": {"parameters": {}, "post": {"parameters": [{"in": "header"}]}},
        }
    }
    ready, left_out = keyed_operations(whole, {})
    assert ready == []
    assert set(left_out) == {"POST /c", "POST /d"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"paths": []}', "[" * 100_000, "a: &a [*a]"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_openapi(text)


def test_a_yaml_bomb_is_left_out() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    lines.append("paths:\n  /pay:\n    post:\n      x-idempotency: {}")
    lines.append("      requestBody: {content: {application/json: {example: *i}}}")
    assert "too large" in reason(read_openapi("\n".join(lines)))


def test_ten_megabytes_of_schemas_are_read() -> None:
    many = {f"S{n}": {"type": "string", "description": "x" * 90} for n in range(80_000)}
    text = json.dumps(document({"$ref": "#/components/schemas/S7"}, components={"schemas": many}))
    assert len(text) > 10_000_000
    assert keyed_operations(read_openapi(text), {})[0][0].request.body == b'"check"'


def test_a_pattern_that_is_matched_for_hours_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openapi, "PATTERN_TIMEOUT", 5.0)
    said = reason(document({"type": "string", "pattern": "^(a|a)*(a|a)*(a|a)*b$", "minLength": 99}))
    assert "no text was found for its pattern" in said


@pytest.mark.parametrize("pattern", ["(", "(?<x>a)", "\\p{L}+"])
def test_a_pattern_of_another_language_is_left_out(pattern: str) -> None:
    assert "pattern" in reason(document({"type": "string", "pattern": pattern}))


def test_without_the_extra_a_pattern_is_said_to_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        assert name == "hypothesis"

    monkeypatch.setattr(openapi, "find_spec", absent)
    said = reason(document({"type": "string", "pattern": "a+"}))
    assert "pip install 'semel[check]'" in said


def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    for text in (json.dumps({"paths": {"/x": {"post": {}}}}), "\x00\xff"):
        file.write_text(text, "latin-1")
        words = ["check", "http://127.0.0.1:9", "--openapi", str(file)]
        done = CliRunner().invoke(semel, words)
        assert done.exit_code == 2, done.output
