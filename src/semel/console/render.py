"""Templates: every text is escaped, and what a reader could not see or would misread is shown.

Keys, tenants, paths, errors and bodies come from strangers. HTML in them is escaped by Jinja. Marks
that turn the direction of a line round, control characters and such of no width would make two
texts look alike, so they are written as ``\\u202e``. It is done for every value that a template
prints, not where somebody has thought of it.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from semel.console.budget import paced
from semel.console.charts import bars
from semel.console.times import Moment

_HERE: Final = Path(__file__).parent
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SUSPECT: Final = re.compile("[^\n\t\x20-\x7e]")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and signs that have no shape."""
SHORT: Final = 120
"""Characters of a text that a table shows."""


def visible(text: str) -> str:
    """``text`` with escapes in place of characters that are not seen."""
    return text if text.isascii() and text.isprintable() else _SUSPECT.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if unicodedata.category(character) not in _HIDDEN and not _UNSEEN.match(character):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _finalize(value: Any) -> Any:
    """What a template prints. None is a dash, so that no table has an empty cell by accident."""
    if value is None:
        return "–"
    if isinstance(value, Markup):
        return value
    return visible(value if isinstance(value, str) else str(value))


def short(text: str, most: int = SHORT) -> Markup:
    """A text of strangers for a table: cut, with its length told, and kept apart from its line."""
    seen = visible(text[: most * 2])
    more = len(text) > most
    cut = f"{seen[:most]}…" if more or len(seen) > most else seen
    title = f"{len(text):,} characters" if more else ""
    if title:
        return Markup(f'<bdi title="{escape(title)}">{escape(cut)}</bdi>')  # noqa: S704
    return Markup(f"<bdi>{escape(cut)}</bdi>")  # noqa: S704


def ago(moment: Moment | None) -> Markup:
    """A relative time, with the UTC time as its title."""
    if moment is None:
        return Markup("–")
    # Digits and words of ours; Markup.format is several times as slow.
    said = f'datetime="{moment.iso}" title="{moment.utc}"'
    return Markup(f"<time {said}>{moment.words}</time>")  # noqa: S704


def as_is(text: str) -> Markup:
    """For the value of a field that is sent back: escaped, and otherwise unchanged.

    Nobody reads it there; made visible, it would come back as another text.
    """
    return escape(text)


def number(count: int | float | None) -> str:
    return "–" if count is None else f"{count:,}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 record``, ``2 records``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@cache
def environment() -> Environment:
    """Made once in a process; templates are compiled when they are first used."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Any] = made.filters  # pyright: ignore[reportAssignmentType]
    filters |= {"short": short, "ago": ago, "number": number, "plural": plural, "asis": as_is}
    filters["bars"] = bars
    return made


def render(template: str, **context: Any) -> str:
    found = environment().get_template(template)
    return "".join(paced(found.generate(version=version(), **context)))


@cache
def static_files() -> dict[str, tuple[str, bytes, str]]:
    """By name: the kind, the content, and a tag that changes with it. Other files are not served,
    whatever path is asked for."""
    return {
        path.name: (_KINDS[path.suffix], content, sha256(content).hexdigest()[:16])
        for path in sorted((_HERE / "static").iterdir())
        if path.suffix in _KINDS and (content := path.read_bytes())
    }


@cache
def version() -> str:
    """Of all files: links to them carry it, so that a browser never mixes two versions."""
    tags = "".join(tag for _, _, tag in static_files().values())
    return sha256(tags.encode()).hexdigest()[:12]
