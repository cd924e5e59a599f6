"""Exchanges as they may be shown: without secrets, and without text that a reader's program obeys.

A secret is what was given as one, what stands in a header for credentials, and what a body, a form
or a query has under a name such as ``password``. It is blotted out wherever it appears again, also
when a server gives it back escaped, as base64 or in hexadecimal digits.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

from semel.check.json_values import is_array, is_object
from semel.check.wire import Pairs, WireExchange

BLOT: Final = "[redacted]"
LONGEST: Final = 2000
"""Characters of a body that are shown."""
LEAST_SECRET: Final = 6
"""Shorter texts are blotted out as whole words only: else half the report would be."""
MOST_SECRETS: Final = 500
_SECRET_HEADER: Final = re.compile(
    r"authorization|cookie|token|secret|signature|api-?key|credential|session", re.IGNORECASE
)
_SECRET_NAME: Final = re.compile(
    r"passw|secret|token|api_?-?key|access_?-?key|private_?-?key|credential|authorization|session"
    r"|^(?:number|pan|cvc|cvv|cvv2|pin|iban)$|card_?-?number|account_?-?number",
    re.IGNORECASE,
)

_QUOTED: Final = re.compile(r'"([^"\\]{1,60})"\s*:\s*"([^"]{1,500})"')


class Redactor:
    """Shows exchanges without what was secret in any of them."""

    def __init__(self, exchanges: Iterable[WireExchange], given: Collection[str] = ()) -> None:
        found: set[str] = set()
        for one in exchanges:
            found |= _of_headers(one.request.headers)
            found |= _named(one.request.body, one.request.target)
            if one.answer is not None:
                found |= _of_headers(one.answer.headers) | _named(one.answer.body)
        found = {each for each in found if len(each) >= LEAST_SECRET}
        plain = sorted(found, key=len, reverse=True)[:MOST_SECRETS]
        # What the caller gave is looked for in every coat; what a server made up, as it is.
        coats = [form for each in sorted(given, key=len, reverse=True) for form in _coats(each)]
        patterns = [*coats, *(re.escape(each) for each in plain)]
        self._pattern = re.compile("|".join(patterns), re.IGNORECASE) if patterns else None

    def text(self, text: str) -> str:
        """The text without secrets, and with no character that moves a cursor."""
        if self._pattern is not None:
            text = self._pattern.sub(BLOT, text)
        return shown_safely(text)

    def exchange(self, one: WireExchange) -> dict[str, Any]:
        request = {
            "method": one.request.method,
            "target": self.text(one.request.target),
            "headers": self._headers(one.request.headers),
            "body": self.body(one.request.body),
        }
        if one.answer is None:
            return {"request": request, "answer": None, "note": self.text(one.note)}
        answer = {
            "status": one.answer.status,
            "headers": self._headers(one.answer.headers),
            "body": self.body(one.answer.body),
        }
        return {"request": request, "answer": answer, "note": self.text(one.note)}

    def _headers(self, headers: Pairs) -> list[list[str]]:
        return [
            [self.text(name), BLOT if _is_secret(name) else self.text(text)]
            for name, text in headers
        ]

    def body(self, body: bytes, longest: int = LONGEST) -> str:
        # First blotted out, then cut: half a secret is one too.
        text = self.text(body.decode("utf-8", "replace"))
        return text if len(text) <= longest else f"{text[:longest]}… ({len(body)} bytes)"


def shown_safely(text: str) -> str:
    """The text with the escape of what is not printable: controls, marks of direction, halves of
    characters. Line breaks stay."""
    if text.isprintable():
        return text
    return "".join(e if e.isprintable() or e == "\n" else ascii(e)[1:-1] for e in text)


def _is_secret(name: str) -> bool:
    return name.lower() != "idempotency-key" and _SECRET_HEADER.search(name) is not None


def _of_headers(headers: Pairs) -> set[str]:
    texts = [text for name, text in headers if _is_secret(name)]
    words = {word.strip(';,"') for text in texts for word in re.split(r"[\s=]", text)}
    schemes = {"bearer", "basic", "digest", "httponly", "secure", "samesite", "expires", "max-age"}
    return {word for word in words if word.lower() not in schemes}


def _named(body: bytes, target: str = "") -> set[str]:
    """What stands under the name of a secret, in JSON, in a form and in a query."""
    try:
        pairs = list(_members(json.loads(body))) if body else []
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
        pairs = _QUOTED.findall(text)  # JSON that was cut, or that is inside of something else
        pairs += parse_qsl(text) if len(text) < 10_000 else []
    pairs += parse_qsl(target.partition("?")[2])
    return {value for name, value in pairs if _SECRET_NAME.search(name)}


def _members(value: Any) -> Iterator[tuple[str, str]]:
    if is_object(value):
        for name, each in value.items():
            if isinstance(each, str | int) and not isinstance(each, bool):
                yield name, str(each)
            yield from _members(each)
    elif is_array(value):
        for each in value:
            yield from _members(each)


def _coats(secret: str) -> Iterator[str]:
    """Patterns for a secret as it is, escaped character by character, and encoded as a whole."""
    each = "".join(_character(character) for character in secret)
    if len(secret) < LEAST_SECRET:
        yield rf"(?<!\w){each}(?!\w)"
        return
    yield each
    whole = secret.encode("utf-8", "surrogatepass")
    yield whole.hex()
    for before in range(3):  # base64 of a text that has the secret inside, at any place
        coded = base64.b64encode(b"." * before + whole).decode()
        inner = coded[(before * 8 + 5) // 6 : len(coded.rstrip("=")) - bool(coded.count("="))]
        if len(inner) >= LEAST_SECRET:
            yield re.escape(inner).replace(r"\+", "[+-]").replace("/", "[/_]")


def _character(one: str) -> str:
    """A character, or an escape of it as JSON, URLs and HTML write them."""
    code = ord(one)
    coded = "".join(f"%{byte:02x}" for byte in one.encode("utf-8", "surrogatepass"))
    forms = [re.escape(one), rf"\\u{code:04x}", coded, rf"&\#0*{code};", rf"&\#x0*{code:x};"]
    return f"(?:{'|'.join(forms)}|\\\\{re.escape(one)})"
