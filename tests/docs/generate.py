"""What the documentation takes from the code: ``python -m tests.docs.generate`` writes it there.

A generated piece stands between two comments in a page; a test compares it with the code.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from semel.core.records import State
from semel.core.states import TABLE, RecordEvent, Rule
from semel.runtime.events import CATALOGUE
from semel.stores.sql.dialect import DIALECTS, query_files
from semel.telemetry.metrics import MEASURES
from tests.docs.pages import Page, pages

_PIECE = re.compile(
    r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end of generated -->)", re.MULTILINE | re.DOTALL
)
_EVENT = re.compile(r"^-- event: (.+)$", re.MULTILINE)


def performed() -> list[Rule]:
    """The rows of the table that a store of this release can carry out."""
    texts = [text for name in DIALECTS for text in query_files(name).values()]
    events = {RecordEvent(name) for text in texts for name in _EVENT.findall(text)}
    return [row for row in TABLE if row.event in events]


def table() -> str:
    lines = ["| from | event | to | must show | old fence |", "|---|---|---|---|---|"]
    for row in performed():
        burnt = "burnt" if row.burns else ""
        cells = (_named(row.source), str(row.event), _named(row.target), str(row.proof), burnt)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def diagram() -> str:
    arrows: dict[tuple[State | None, State | None], list[str]] = {}
    for row in performed():
        arrows.setdefault((row.source, row.target), []).append(str(row.event))
    lines = ["```mermaid", "stateDiagram-v2"]
    for (source, target), events in arrows.items():
        lines.append(f"    {_node(source)} --> {_node(target)}: {' / '.join(map(_label, events))}")
    return "\n".join([*lines, "```"])


def _named(state: State | None) -> str:
    return "–" if state is None else f"`{state}`"


def _node(state: State | None) -> str:
    return "[*]" if state is None else str(state)


def _label(event: str) -> str:
    return event.replace(":", "")  # a colon ends a label


def events() -> str:
    lines = ["| event | when | fields | level of its log line |", "|---|---|---|---|"]
    for name, kind in CATALOGUE.items():
        fields = ", ".join(f"`{field}`" for field in kind.fields)
        level = logging.getLevelName(kind.level).lower() if kind.level else "none"
        lines.append(f"| `{name}` | {kind.meaning} | {fields} | {level} |")
    return "\n".join(lines)


def metrics() -> str:
    lines = ["| OpenTelemetry | Prometheus | kind | labels | what |", "|---|---|---|---|---|"]
    for measure in MEASURES.values():
        labels = ", ".join(f"`{label}`" for label in measure.labels)
        names = f"`{measure.name}` | `{measure.prometheus}`"
        lines.append(f"| {names} | {measure.kind} | {labels} | {measure.help} |")
    return "\n".join(lines)


PIECES: dict[str, Callable[[], str]] = {
    "state-table": table,
    "state-diagram": diagram,
    "event-table": events,
    "metric-table": metrics,
}


def rewritten(page: Page) -> str:
    """The page's text with every generated piece made anew."""
    return _PIECE.sub(lambda found: f"{found[1]}{PIECES[found[2]]()}\n{found[4]}", page.text)


def generated(page: Page) -> list[str]:
    """The names of the generated pieces of a page."""
    return [found[2] for found in _PIECE.finditer(page.text)]


def main() -> None:
    for page in pages():
        if generated(page):
            page.path.write_text(rewritten(page), encoding="utf-8")


if __name__ == "__main__":
    main()
