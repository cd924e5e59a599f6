"""Audit: who did what and why, as a page, as CSV and as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from semel.console import responses
from semel.console.requests import ConsoleRefusal
from semel.console.screens.filters import since, whole_identity
from semel.console.times import Moment
from semel.console.view import View
from semel.core.frozen import frozen
from semel.core.operations.acts import Verb
from semel.core.operations.audit import AuditEntry
from semel.core.records import Micros, Response

PAGE: Final = 100
LOOK: Final = 5_000
"""Acts that are read for one page: they are kept for good, and a filter may fit none."""
MOST: Final = 50_000
"""Acts that are read for one file."""
_FIELDS: Final = ("at", "verb", "by", "reason", "identity", "subject", "before", "after")


@frozen
class ActRow:
    """One act. ``identity``: of the record it was done to."""

    at: Moment
    verb: str
    by: str
    reason: str
    identity: str | None
    subject: str | None
    before: str | None
    after: str | None
    """``gone``: there is no record any more."""


@frozen
class ActsPage:
    rows: tuple[ActRow, ...]
    looked: int
    """Acts that were read for it."""
    next: str | None
    verbs: tuple[str, ...]


def show(view: View) -> ActsPage | Response:
    """Acts that fit the filters in the address; ``format=csv`` or ``jsonl`` is a file of them."""
    now, form = view.now(), view.query.text("format")
    wanted, since_when = _filter(view), since(view.query.text("since"), now)
    every = view.operator.audit(since=since_when, before=view.query.text("after"))
    if form is not None:
        found = filter(wanted, islice(every, MOST))
        return _file(form, (_row(each, now) for each in found))
    entries, looked, last, more = list[AuditEntry](), 0, None, False
    for entry in every:
        if len(entries) == PAGE or looked == LOOK:
            more = True
            break
        looked, last = looked + 1, entry
        if wanted(entry):
            entries.append(entry)
    following = last.place if more and last is not None else None
    return ActsPage(tuple(_row(each, now) for each in entries), looked, following, tuple(Verb))


def _filter(view: View) -> Callable[[AuditEntry], bool]:
    """What the address asks for; there is no index for it."""
    identity = whole_identity(view.query.text("identity"))
    verb, by = view.query.text("verb"), view.query.text("by")

    def fits(entry: AuditEntry) -> bool:
        wanted = identity in (None, entry.identity) and verb in (None, entry.verb)
        return wanted and (by is None or by in entry.by)

    return fits


def _row(entry: AuditEntry, now: Micros) -> ActRow:
    return ActRow(
        Moment(entry.at, now),
        entry.verb,
        entry.by,
        entry.reason,
        None if entry.identity is None else entry.identity.hex(),
        entry.subject,
        entry.before,
        entry.after or ("gone" if entry.identity and entry.before else None),
    )


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def _file(form: str, rows: Iterable[ActRow]) -> Response:
    listed = (responses.as_json(each) for each in rows)
    if form == "jsonl":
        return _download(
            "jsonl", "application/jsonl", "".join(f"{json.dumps(r)}\n" for r in listed)
        )
    if form == "csv":
        return _download("csv", "text/csv; charset=utf-8", as_csv(_FIELDS, listed))
    raise ConsoleRefusal(400, "A file is format=csv or format=jsonl.")


def _download(ending: str, kind: str, text: str) -> Response:
    name = ("Content-Disposition", f'attachment; filename="semel-audit.{ending}"')
    return responses.response(200, kind, text.encode("utf-8", "replace"), (name,))


def as_csv(fields: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """RFC 4180. A cell that a spreadsheet would take for a formula begins with an apostrophe."""
    written = io.StringIO()
    lines = csv.writer(written)
    lines.writerow(fields)
    for row in rows:
        lines.writerow([_cell(row[field]) for field in fields])
    return written.getvalue()


def _cell(value: Any) -> str:
    return _FORMULA.sub(r"\1'\2", "" if value is None else str(value))


_FORMULA: Final = re.compile(r"(^|[;|\t\r\n])(\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""A formula where a cell may begin, also to a spreadsheet that divides by semicolons."""
