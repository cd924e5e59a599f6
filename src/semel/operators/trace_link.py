"""A link from a record to its traces: the address of the tracing system's own search.

No record keeps a trace's id: a key has many traces, and rows would grow. The spans carry the first
digits of the identity instead (`semel.telemetry.opentelemetry`), and the link searches for them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, urlsplit

from semel.core.frozen import frozen
from semel.core.records import Identity, Micros
from semel.errors import ConfigurationError
from semel.runtime.events import short

PLACES: Final = ("identity", "from", "to", "from_ms", "to_ms", "from_us", "to_us")
"""``from`` and ``to`` are Unix times in seconds, and with an ending in smaller units."""
MARGIN: Final[Micros] = 60_000_000
"""Before and behind what is searched: clocks differ."""
_LONGEST: Final = 2_000
_PLACE: Final = re.compile(r"\{(.*?)\}")


@frozen
class TraceLink:
    """``https://tempo.example/search?q={identity}&start={from}&end={to}``, checked when made.

    All that is put into it are hexadecimal digits and whole numbers: no text that is stored.
    """

    template: str

    def __post_init__(self) -> None:
        why = _why_not(self.template)
        if why is not None:
            raise ConfigurationError(f"trace_url= {why}")

    def of(self, identity: Identity, since: Micros, until: Micros) -> str:
        """The address that finds what happened to a record between two times."""
        given = {"identity": short(identity)}
        for unit, size in (("", 1_000_000), ("_ms", 1_000), ("_us", 1)):
            given[f"from{unit}"] = str(max(since - MARGIN, 0) // size)
            given[f"to{unit}"] = str((until + MARGIN) // size)
        return _PLACE.sub(lambda found: quote(given[found[1]], safe=""), self.template)


def _why_not(template: object) -> str | None:
    """What is wrong with a template. It is the operator's own, and may have been pasted wrongly."""
    if not isinstance(template, str) or not 0 < len(template) <= _LONGEST:
        return f"takes the address of a search, of up to {_LONGEST} characters"
    if not template.isascii() or not template.isprintable() or set(template) & set(" \"'<>`\\"):
        return "has a blank, a quote or another character that is percent-encoded in addresses"
    unknown = next((each for each in _PLACE.findall(template) if each not in PLACES), None)
    if unknown is not None:
        return f"has {{{unknown}}}; known are {', '.join(f'{{{each}}}' for each in PLACES)}"
    if set(_PLACE.sub("", template)) & set("{}"):
        return "has a brace of its own: write it as %7B or %7D"
    if "{identity}" not in template:
        return "needs {identity}: otherwise it finds every trace there is"
    return _why_no_address(template)


def _why_no_address(template: str) -> str | None:
    try:
        parts = urlsplit(template)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with https:// or http:// and a host"
    if "{" in parts.netloc or "@" in parts.netloc:
        return "has a host with a placeholder or a password in it"
    return None
