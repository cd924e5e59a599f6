"""Records, effects and audit entries as dictionaries for JSON, and as lines for people.

A key is masked everywhere: with the real one, requests could be sent.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from semel.cli.output import moment, print_json, say
from semel.core.operations.audit import AuditEntry
from semel.core.operations.notables import NotableEntry
from semel.core.operations.outbox import Shelf
from semel.core.operations.requests import Recalled
from semel.core.records import Case, Effect, Glimpse, Origin, Record
from semel.core.recovery import journal
from semel.core.request import fingerprint, keys
from semel.core.stored import snapshot
from semel.core.unknown.settle_unknown import in_doubt
from semel.errors import StoreError

if TYPE_CHECKING:
    from semel.operators.operator import Operator


def record_document(opened: Operator, recalled: Recalled, *, body: bool) -> dict[str, Any]:
    """All that is kept of a record, and what operators did to it since it was created."""
    from semel.operators.story import effects_of

    case, record = recalled.case, recalled.case.record
    return {
        **_shown(record, "identity", "state"),
        "lapsed": record.lapsed(recalled.now),
        **_owner(case),
        **_place(case.origin),
        **_shown(record, "created_at", "leased_until", "on_lapse"),
        **_shown(record, "expires_at", "forget_at", "retired_at"),
        "next_at": moment(case.due_at),
        "tries": case.tries,
        "fence": f"{record.fence.hex()[:6]}...",
        "fingerprint": fingerprint.label(record.fingerprint),
        "resource": case.resource,
        "reason": record.reason,
        **_journal(case),
        "request_bytes": None if case.request is None else len(case.request),
        "answer": _answer(record, body=body),
        "effects": [effect_document(each) for each in effects_of(opened.guard, record)],
        "acts": [
            _shown(each, "at", "verb", "by", "reason")
            for each in opened.audit(identity=record.identity, since=record.created_at)
        ],
    }


def glimpse_document(seen: Glimpse) -> dict[str, Any]:
    """A record of a list."""
    return {
        **_shown(seen, "identity", "state"),
        "application": None if seen.terms is None else seen.terms.application,
        "route": None if seen.terms is None else seen.terms.route,
        **_place(seen.origin),
        **_shown(seen, "created_at", "leased_until", "expires_at", "forget_at"),
        "next_at": moment(seen.due_at),
        **_shown(seen, "tries", "reason", "status", "resource"),
        "stored_bytes": seen.size,
    }


def case_document(case: Case) -> dict[str, Any]:
    """A record whose outcome is unknown."""
    record = case.record
    return {
        **_shown(record, "identity", "state"),
        **_owner(case),
        **_place(case.origin),
        "in_doubt": in_doubt(case),
        **_shown(record, "reason", "created_at", "leased_until"),
        "tries": case.tries,
        "next_probe_at": moment(case.due_at),
    }


def audit_document(entry: AuditEntry) -> dict[str, Any]:
    """What an operator did."""
    who_and_why = _shown(entry, "at", "verb", "by", "reason")
    return who_and_why | _shown(entry, "identity", "subject", "before", "after")


def notable_document(entry: NotableEntry) -> dict[str, Any]:
    """What was seen of requests or webhooks."""
    where = _shown(entry, "at", "kind", "application", "route", "tenant", "identity", "count")
    return where | {"detail": json.loads(entry.detail), "place": entry.place}


def _shown(thing: object, *names: str) -> dict[str, Any]:
    """Attributes, under their own names: times in ISO 8601, bytes as digits."""
    document: dict[str, Any] = {}
    for name in names:
        value = getattr(thing, name)
        if name.rpartition("_")[2] in ("at", "until"):
            value = moment(value)
        elif isinstance(value, bytes):
            value = value.hex()
        document[name] = value.value if isinstance(value, Enum) else value
    return document


def _place(origin: Origin) -> dict[str, str]:
    """Where a key was used."""
    place = {"tenant": origin.tenant, "method": origin.method, "path": origin.path}
    return place | {"key": keys.mask(origin.key)}


def _owner(case: Case) -> dict[str, str | None]:
    """The application and the route of a record; None if its terms are not on record."""
    terms = case.terms
    if terms is None:
        return {"application": None, "route": None}
    return {"application": terms.application, "route": terms.route}


def _answer(record: Record, *, body: bool) -> dict[str, Any] | None:
    """What is kept of the answer; if ``body``, its headers and body too, in base64 if no UTF-8."""
    from semel.operators.story import kept_as

    if record.snapshot is None:
        return None
    try:
        kept = snapshot.decode(record.snapshot)
    except StoreError as error:  # damaged, or encrypted with a key that is not at hand
        return {"unreadable": str(error)}
    document: dict[str, Any] = {
        "status": kept.status,
        "kept": kept_as(kept),
        "bytes": kept.size or len(kept.body or b""),
        "schema_version": kept.schema_version,
    }
    if not body:
        return document
    headers = [f"{name.decode('latin-1')}: {text.decode('latin-1')}" for name, text in kept.headers]
    try:
        content = {"body": None if kept.body is None else kept.body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": b64encode(kept.body or b"").decode()}
    return document | {"headers": headers} | content


def _journal(case: Case) -> dict[str, Any]:
    """The recovery points of an operation."""
    try:
        points = [
            {"name": point.name, "kind": point.kind.value, "done": point.done}
            for point in journal.decode(case.journal).points
        ]
        return {"in_doubt": in_doubt(case), "points": points}
    except StoreError as error:
        return {"in_doubt": None, "points": [], "unreadable": str(error)}


def effect_document(found: Effect) -> dict[str, Any]:
    """An effect, without its payload, which is the application's."""
    settled = Shelf.WAITING if found.delivered_at is None else Shelf.DELIVERED
    return {
        **_shown(found, "key", "name", "application"),
        "state": (settled if found.dead_at is None else Shelf.DEAD).value,
        **_shown(found, "identity", "order", "tries", "created_at", "due_at", "leased_until"),
        **_shown(found, "delivered_at", "dead_at", "provider_id", "error"),
        "bytes": len(found.payload),
    }


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def print_document(document: dict[str, Any], as_json: bool) -> None:
    """Print one record or effect: as JSON, or as lines ``name: value``."""
    if as_json:
        return print_json(document)
    for line in _lines(document):
        say(line)
    return None


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    """``name: value``; the parts of a list or a table follow below its name."""
    for name, value in shown.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            yield f"{label}:"
            parts = cast("dict[str, Any]", value)
            yield from (f"  {line}" for line in _lines(parts))
        elif isinstance(value, list) and value:
            yield f"{label}:"
            yield from (f"  {_brief(each)}" for each in value)  # pyright: ignore[reportUnknownVariableType]
        elif isinstance(value, bool):
            yield f"{label}: {'yes' if value else 'no'}"
        else:
            yield f"{label}: {'-' if value is None or value == [] else value}"


def _brief(value: Any) -> str:
    """An act, a point or an effect in one line."""
    if not isinstance(value, dict):
        return str(value)
    part = cast("dict[str, Any]", value)
    if "verb" in part:
        return f"{part['at']} {part['verb']} by {part['by']}: {part['reason']}"
    if "kind" in part:
        return f"{part['kind']} {part['name']}{'' if part['done'] else ': begun'}"
    tries = f", {part['tries']} tries" if part["tries"] else ""
    return f"{part['name']} {part['key']}: {part['state']}{tries}"
