"""The link to a record's traces: what may stand in its template, and what is put into it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import semel
from semel.core.records import Identity
from semel.errors import ConfigurationError
from semel.operators.trace_link import MARGIN, PLACES, TraceLink

IDENTITY = Identity(bytes(range(32)))
SINCE, UNTIL = 1_700_000_000_123_456, 1_700_000_600_000_000


def test_every_placeholder_is_digits_of_the_identity_or_a_time() -> None:
    link = TraceLink("https://t.example/?" + "&".join(f"{each}={{{each}}}" for each in PLACES))
    asked = {
        name: value
        for name, (value,) in parse_qs(urlsplit(link.of(IDENTITY, SINCE, UNTIL)).query).items()
    }
    since, until = SINCE - MARGIN, UNTIL + MARGIN
    assert asked == {
        "identity": "0001020304050607",
        "from": str(since // 1_000_000),
        "to": str(until // 1_000_000),
        "from_ms": str(since // 1_000),
        "to_ms": str(until // 1_000),
        "from_us": str(since),
        "to_us": str(until),
    }


@pytest.mark.parametrize(
    "template",
    [
        "https://tempo.example/search?q={identity}&start={from}&end={to}",
        "http://127.0.0.1:16686/search?tags=%7B%22semel.identity%22%3A%22{identity}%22%7D",
        "https://[::1]/trace/{identity}/{identity}",
    ],
)
def test_addresses_of_searches_are_taken(template: str) -> None:
    found = TraceLink(template).of(IDENTITY, SINCE, UNTIL)
    assert found.startswith(template.partition("{")[0])
    assert "0001020304050607" in found


@pytest.mark.parametrize(
    "template",
    [
        *("", 7, b"https://t.example/{identity}", "https://t.example/{identity}" + "x" * 2000),
        *("javascript:alert({identity})", "data:text/html,{identity}", "//t.example/{identity}"),
        *("ftp://t.example/{identity}", "https:///{identity}", "/search?q={identity}"),
        *("https://{identity}.t.example/", "https://t.example:{from}/{identity}"),
        *("https://ann:secret@t.example/{identity}", "https://[t.example/{identity}"),
        *("https://t.example:x/{identity}", "https://t.example/", "https://t.example/{from}"),
        *("https://t.example/{key}{identity}", "https://t.example/{identity.__class__}"),
        *("https://t.example/{identity!r}", "https://t.example/{}{identity}"),
        *(
            "https://t.example/{{identity}}",
            "https://t.example/{identity}{",
            "https://t/{identity}}",
        ),
        *('https://t.example/{identity}" onclick="x', "https://t.example/{identity}'"),
        *("https://t.example/{identity}<script>", "https://t.example/ {identity}"),
        *("https://t.example/{identity}\r\nX: y", "https://t.example/{identity}\x00"),
        *(
            "https://t.example\\@evil.example/{identity}",
            "https://t\u202e.example/{identity}",
            "https://tä.example/{identity}",
        ),
        *("java\tscript://t.example/{identity}", " https://t.example/{identity}"),
    ],
)
def test_anything_else_is_refused_when_the_guard_is_made(template: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^trace_url= "):
        semel.Guard("memory://", tenant=None, maintenance=None, trace_url=template)
