"""Writes the SQL that is sent, for each database, from the queries of `stores/sql/queries`.

::

    python -m tools.queries            writes the files
    python -m tools.queries --check    fails when a file is not what would be written

A query is one file, ``queries/<name>.sql``, or ``queries/<dialect>/<name>.sql`` where databases
differ. What is sent is ``sent/<dialect>/<name>.sql``; only that is in the wheel, and read by
semel. To add a query, write its file and run the tool.

The header of a query says which parameters it ``takes:``; a placeholder that the header does not
name is an error. ``{now}`` is the clock; ``{answer}`` is the column ``snapshot``, of a large one
its head (`core/stored/snapshot.py`); ``{among}`` compares with the parameter ``names``, a JSON
array of texts, and ``{in_states}`` the state of a record with one of numbers; ``{locked}`` takes
row locks and waits for none; ``{by_due}`` names the index of what is due, where a planner has to
be told; ``{chosen}`` compares with the column ``which`` of the query's part
``due``; ``{retention}`` and ``{tombstone}`` are those of the terms of the record that is written. A
query for many rows at once names the columns of one in ``rows:`` and has ``{rows}`` where the
values go.

States, duties and what becomes of a lapsed lease are numbers in the tables (`core/records.py`).
Queries name them: ``{completed}`` is a state, ``{duty.ask}`` a duty, ``{lapse.resume}`` what
becomes of a lease. ``{expires_at}`` and ``{forget_at}`` are those times of a record, one of which
may be in the column ``due_at``. ``{start}`` is the part of an answer that tells its status;
``{record}``, ``{case}`` and ``{glimpse}`` are the columns of what
a query gives of a record, in the order of `stores/sql/rows.py`.

A query that ``audits:`` names an act and the state it leads to; its entry is written with it
(`within`, `before`).

Where a database cannot tell what a write did, a query comes to several statements: derived from the
shared file (`without_returning`), or written in the dialect's own with ``;`` between them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent, fill, indent
from typing import Final

from semel.core.records import DUTY_NUMBERS, ON_LAPSE_NUMBERS, STATE_NUMBERS
from semel.core.stored.snapshot import HEAD, LARGE, UP_TO_STATUS

FOLDER: Final = Path(__file__).parents[1] / "src/semel/stores/sql"
WIDTH: Final = 100

_HEADER: Final = re.compile(r"(?:--.*\n)+")
_TAKES: Final = re.compile(r"^-- (takes|rows):(.*(?:\n--   .*)*)$", re.MULTILINE)
_AUDITS: Final = re.compile(r"^-- audits: (\w+) (\w+|-)$", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_CAST: Final = re.compile(r"CAST\((:\w+|NULL) AS \w+\)")
_OF_TERMS: Final = "(SELECT {} FROM semel_terms WHERE id = semel_record.terms)"
_RECORD: Final = """\
identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
{expires_at}, {forget_at}, {answer}, reason, retired_at"""
_CASE: Final = """\
record.identity, record.state, record.fence, record.fingerprint, record.fields,
record.on_lapse, record.created_at, record.leased_until, {expires_at},
{forget_at}, record.snapshot, record.reason, record.retired_at, record.tenant,
record.method, record.path, record.key AS client_key, record.request, record.journal,
record.resource, record.tries, record.due_at, terms.said"""
_GLIMPSE: Final = """\
record.identity, record.state, record.on_lapse, record.tenant, record.method, record.path,
record.key AS client_key, record.created_at, record.leased_until, {expires_at}, {forget_at},
record.due_at, record.tries, record.reason, length(record.snapshot) AS size,
{start} AS start, record.resource, terms.said"""
_COLUMNS: Final = {"{record}": _RECORD, "{case}": _CASE, "{glimpse}": _GLIMPSE}
_TIMES: Final = {
    "{expires_at}": "CASE WHEN state = {completed} THEN due_at END",
    "{forget_at}": "CASE WHEN state IN ({failed_retryable}, {expired}) THEN due_at"
    " ELSE forget_at END",
}
_NUMBERS: Final = {
    **{f"{{{state}}}": (number, state) for state, number in STATE_NUMBERS.items()},
    **{f"{{duty.{duty}}}": (number, duty) for duty, number in DUTY_NUMBERS.items()},
    **{f"{{lapse.{each}}}": (number, each) for each, number in ON_LAPSE_NUMBERS.items()},
}


class BadQuery(Exception):
    """A query does not keep the rules above."""


@dataclass(frozen=True)
class Syntax:
    """How a database's clock is read, how parameters are written, and where it differs."""

    now: str
    answer: str
    among: str
    in_states: str
    locked: str
    chosen: str
    numbered: bool = False
    """Whether parameters are numbered, in the order of the header."""
    returning: bool = True
    """Whether writes tell the rows they changed."""
    casts: bool = True
    """Whether parameters have no types of their own, and the casts in the files give them one."""
    reserved: str = ""
    """A column that has to be quoted."""
    nested: bool = False
    """Whether one statement may hold several writes."""
    by_due: str = ""
    """Makes the planner read records in the order of what is due, instead of sorting them."""
    held: str = ""
    """What locks the rows that are read."""


def _answer(length: str, marked: str) -> str:
    head = marked.format(f"substr(snapshot, 1, {HEAD})")
    return f"CASE WHEN {length} > {LARGE} THEN {head} ELSE snapshot END"


SYNTAXES: Final[Mapping[str, Syntax]] = {
    # SQLite's own clock has milliseconds at best, and tests move time: the store binds its clock.
    "sqlite": Syntax(
        ":now",
        # A text to SQLite, which holds any bytes, made bytes again.
        answer=_answer("length(snapshot)", "CAST(x'00' || {} AS BLOB)"),
        among="IN (SELECT value FROM json_each(:names))",
        in_states="IN (SELECT value FROM json_each(:names))",
        locked="",  # there is one writer
        chosen="IN (SELECT which FROM due)",
    ),
    # clock_timestamp() and not now(), which stands still within a transaction.
    "postgresql": Syntax(
        "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
        answer=_answer("octet_length(snapshot)", r"'\x00'::bytea || {}"),
        among="= ANY (ARRAY(SELECT json_array_elements_text(CAST(:names AS json))))",
        in_states="= ANY (ARRAY(SELECT json_array_elements_text(CAST(:names AS json))::smallint))",
        locked="FOR UPDATE SKIP LOCKED",
        # As an array, they are few to the planner, which knows no limit that is a parameter and
        # would rather read the whole table than look up a tenth of it.
        chosen="= ANY (ARRAY(SELECT which FROM due))",
        numbered=True,
        nested=True,
        held="FOR UPDATE",
    ),
    # UTC_TIMESTAMP stands still within a statement, and asks for no time zone. The store writes
    # the values in the place of the names itself: neither driver has another way.
    "mysql": Syntax(
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        answer=_answer("LENGTH(snapshot)", "CONCAT(x'00', {})"),
        among="IN (:names)",
        in_states="IN (:names)",
        locked="FOR UPDATE SKIP LOCKED",
        chosen="IN (:picked)",
        returning=False,
        casts=False,
        reserved="key",
        # Where many are due, it would rather read and lock the whole table for fifty of them.
        by_due="FORCE INDEX (semel_record_due)",
        held="FOR UPDATE",
    ),
}


def sent(dialect: str, folder: Path = FOLDER) -> dict[str, str]:
    """The files of one dialect, by name, as they ought to be."""
    found = {path.name: path for path in (folder / "queries").glob("*.sql")}
    found |= {path.name: path for path in (folder / "queries" / dialect).glob("*.sql")}
    return {name: _file(path, folder, SYNTAXES[dialect]) for name, path in sorted(found.items())}


def _file(path: Path, folder: Path, syntax: Syntax) -> str:
    origin = path.relative_to(folder).as_posix()
    return (
        f"-- Written by `python -m tools.queries` from {origin}: change that file.\n"
        f"{sent_text(path.name, path.read_text('utf-8'), syntax)}\n"
    )


def sent_text(name: str, source: str, syntax: Syntax) -> str:
    """What is sent for a query: its header, and its statements with ``;`` between them."""
    found, head = _TAKES.search(source), _HEADER.match(source)
    if found is None or head is None:
        raise BadQuery(f"{name} has no '-- takes:' or '-- rows:' line")
    takes = found[2].replace("--", "").split()
    text = source[head.end() :].strip()
    text = text.replace("{among}", syntax.among).replace(" {locked}", f" {syntax.locked}".rstrip())
    text = text.replace("{in_states}", syntax.in_states)
    text = text.replace(" {by_due}", f" {syntax.by_due}".rstrip())
    named: list[str] = [] if found[1] == "rows" else takes
    if wrong := set[str](_PLACEHOLDER.findall(text)) ^ set(named):
        raise BadQuery(f"{name}: header and text disagree about {sorted(wrong)}")
    audits = _AUDITS.search(source)
    takes = [*takes, *AUDIT_TAKES] if audits else takes
    parts = [_spelled(part, takes, syntax) for part in _statements(text, audits, syntax)]
    if syntax.numbered:
        takes = [_solid(f"${number} {name}") for number, name in enumerate(takes, 1)]
    line = fill(f"-- {found[1]}: {' '.join(takes)}", WIDTH, subsequent_indent="--        ")
    return head[0].replace(found[0], line.replace("\0", " ")) + ";\n\n".join(parts)


def _statements(text: str, audits: re.Match[str] | None, syntax: Syntax) -> Iterator[str]:
    if audits is not None:
        if syntax.nested:
            text = within(text, audits[1], audits[2])
        else:
            yield before(text, audits[1], audits[2], syntax.held)
    yield from [text] if syntax.returning else without_returning(text)


def _spelled(text: str, takes: Sequence[str], syntax: Syntax) -> str:
    for name, columns in _COLUMNS.items():
        text = re.sub(rf"(?m)^(.*){name}", partial(_in_columns, columns=columns), text)
    if syntax.numbered:
        text = _PLACEHOLDER.sub(lambda match: f"${takes.index(match[1]) + 1}", text)
    text = text.replace("{now}", _solid(syntax.now)).replace("{chosen}", _solid(syntax.chosen))
    text = text.replace("{answer}", syntax.answer)
    text = text.replace("{start}", _solid(f"substr(record.snapshot, 1, {UP_TO_STATUS})"))
    for name, time in _TIMES.items():
        text = text.replace(name, _solid(time))
    for name, (number, word) in _NUMBERS.items():
        text = text.replace(name, _solid(f"{number} /* {word} */"))
    for time in ("retention", "tombstone"):
        text = text.replace(f"{{{time}}}", _solid(_OF_TERMS.format(time)))
    if not syntax.casts:
        text = _CAST.sub(r"\1", text)
    if syntax.reserved:
        text = re.sub(rf"(?<![:\w]){syntax.reserved}\b", f"`{syntax.reserved}`", text)
    lines = [piece for line in text.splitlines() for piece in _wrapped(line)]
    return "\n".join(lines).replace("\0", " ")


def _in_columns(found: re.Match[str], columns: str) -> str:
    """The columns, those of later lines below the first."""
    return found[1] + columns.replace("\n", "\n" + " " * len(found[1]))


# --- statements that put an act on record: a write, and its entry in the audit table, as one step
#
# The entry is made of the row as it is before the write, under the lock that the write needs
# anyway; it is made if and only if the write is. Where a statement may hold several writes they are
# one statement; elsewhere the entry comes first, in the same transaction.

_BRACKETS: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
"""With what is within, which may have conditions of its own."""
_WRITE: Final = re.compile(
    rf"(?P<head>(?P<verb>UPDATE|DELETE FROM) (?P<table>\w+)(?:\s+SET (?:[^()]|{_BRACKETS})*?)?)"
    r"\s+WHERE (?P<where>.*)\s+RETURNING (?P<columns>.*)",
    re.DOTALL,
)
_SUBJECT: Final = {"semel_record": "CAST(NULL AS text)", "semel_effect": "key"}
"""Of a record its identity says enough; what its path and key say must be possible to erase."""
_WORDS: Final = "\n".join(
    f"       WHEN {number} THEN '{state}'" for state, number in STATE_NUMBERS.items()
)
_STATE: Final = {"semel_record": f"CASE state\n{_WORDS} END", "semel_effect": "state"}
"""In words: the audit is read long after, by whoever asks."""

AUDIT_TAKES: Final = ("actor", "why")
"""The parameters that such a statement takes beside its own."""


def within(text: str, verb: str, after: str) -> str:
    """One statement. ``text`` tells what it wrote; ``after``: a state."""
    write = _parsed(text)
    table, where = write["table"], write["where"]
    seen = (
        f"SELECT identity, {_SUBJECT[table]} AS subject,\n"
        f"       {_STATE[table]} AS state_before\nFROM {table}\n"
        f"WHERE {where}\nFOR UPDATE"
    )
    entry = _entry(verb, after, "subject, state_before", "seen")
    return (
        f"WITH seen AS MATERIALIZED (\n{indent(seen, '    ')}\n),\n"
        f"noted AS (\n{indent(entry, '    ')}\n)\n"
        f"{write['head']}\nWHERE {where}\n  AND EXISTS (SELECT FROM seen)\n"
        f"RETURNING {write['columns']}"
    )


def before(text: str, verb: str, after: str, held: str) -> str:
    """The entry alone, to come before ``text`` in its transaction; ``held`` locks the row."""
    write = _parsed(text)
    table = write["table"]
    entry = _entry(verb, after, f"{_SUBJECT[table]},\n       {_STATE[table]}", table)
    return f"{entry}\nWHERE {write['where']}\n{held}".rstrip()


def _parsed(text: str) -> re.Match[str]:
    write = _WRITE.fullmatch(text)
    if write is None:
        raise BadQuery(f"not a write that tells what it did: {text}")
    return write


def _entry(verb: str, after: str, what: str, source: str) -> str:
    """``what``: the columns subject and state_before, from ``source``."""
    then = "CAST(NULL AS text)" if after == "-" else f"'{after}'"
    return (
        "INSERT INTO semel_audit\n"
        "    (at, verb, actor, reason, identity, subject, state_before, state_after)\n"
        f"SELECT {{now}},\n"
        f"       '{verb}', CAST(:actor AS text), CAST(:why AS text), identity, {what},\n"
        f"       {then}\n"
        f"FROM {source}"
    )


# --- for databases whose UPDATE and DELETE tell nothing: one statement as several that do the same
#
# What is chosen for many is locked first, with all that the statement asks of a chosen row; it
# cannot change from then on. A row that is changed is read after it, one that goes is read before.
# They are sent together and share a transaction, so that together they are one step.

_BATCH: Final = re.compile(
    r"WITH due AS MATERIALIZED \((?P<pick>.*?)\n\)\n(?P<main>\w+ .*)", re.DOTALL
)
_AND: Final = re.compile(r"\s+AND ")


def without_returning(text: str) -> tuple[str, ...]:
    """The statements that ``text`` comes to."""
    batch = _BATCH.fullmatch(text)
    if batch is None and not _WRITE.fullmatch(text):
        return tuple(part.strip() for part in text.split(";"))
    write = _parsed(batch["main"] if batch else text)
    verb, table, where, columns = write.group("verb", "table", "where", "columns")
    which, *asked = _AND.split(where, maxsplit=1)
    now_in = f"SELECT {columns}\nFROM {table}\nWHERE "
    if verb == "UPDATE":  # what it asks beside is no longer true after it
        changed = "" if batch else " AND ROW_COUNT() > 0"
        parts = f"{write['head']}\nWHERE {where}", f"{now_in}{which}{changed}"
    else:
        parts = f"{now_in}{where}\nFOR UPDATE", f"{verb} {table}\nWHERE {where}"
    if batch is None:
        return parts
    pick, _, order = dedent(batch["pick"]).strip().rpartition("\nORDER BY ")
    return f"{pick}\n  AND {asked[0]}\nORDER BY {order}", *parts


# --- lines that have become too long

_FIRST: Final = re.compile(r" *(?:SET|SELECT|RETURNING|VALUES) |-- \w+: | *")
_BREAKS: Final = re.compile(r"(?<=, )|(?= (?:AND|OR|WHEN|THEN|ELSE|FROM|\+) )")


def _solid(text: str) -> str:
    """``text`` in one piece: no line is broken within it."""
    return text.replace(" ", "\0")


def _wrapped(line: str) -> Iterator[str]:
    """The line in pieces that fit, if it can be broken."""
    first, start = _end(_FIRST, line), len(line) - len(line.lstrip())
    condition = start + 2 * line[start:].startswith("WHERE")
    while len(line) > WIDTH:
        left = len(line) - len(line.lstrip())
        places = [match.start() for match in _BREAKS.finditer(line) if match.start() > left]
        place = max((place for place in places if place <= WIDTH), default=min(places, default=0))
        if not place:
            break
        yield line[:place].rstrip()
        line = " " * _margin(line, place, first, start, condition) + line[place:].lstrip()
    yield line


def _margin(line: str, place: int, first: int, start: int, condition: int) -> int:
    """Where the rest of a line begins: below what it goes on with."""
    before, word = line[:place], line[place:].split()[0]
    match word:
        case "AND" | "OR":
            return _unclosed(before) or condition
        case "WHEN" | "THEN" | "ELSE" if "CASE " in before:
            return before.rindex("CASE ") + 5
        case "WHEN" | "THEN" | "ELSE" | "FROM":
            return start
        case "+":
            return start + 4
        case _:
            return first


def _unclosed(text: str) -> int:
    """Where the last bracket that is still open begins to hold something; 0 if there is none."""
    open_at: list[int] = []
    for place, letter in enumerate(text):
        if letter == "(":
            open_at.append(place + 1)
        elif letter == ")" and open_at:
            open_at.pop()
    return open_at[-1] if open_at else 0


def _end(pattern: re.Pattern[str], line: str) -> int:
    found = pattern.match(line)
    return found.end() if found else 0


# --- the files


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    parser = argparse.ArgumentParser(
        "tools.queries", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args(arguments).check
    different = [path for name in SYNTAXES for path in _written(name, folder, check)]
    for path in different:
        shown = path.relative_to(folder)
        print(f"{shown}: {'run `python -m tools.queries`' if check else 'written'}")
    return int(check and bool(different))


def _written(dialect: str, folder: Path, check: bool) -> Iterator[Path]:
    """The files that are not what they ought to be; put right, unless it is to ``check``."""
    target = folder / "sent" / dialect
    target.mkdir(parents=True, exist_ok=True)
    wanted = sent(dialect, folder)
    for path in sorted({*target.glob("*"), *(target / name for name in wanted)}):
        text = wanted.get(path.name)
        if text is None:
            yield path
            if not check:
                path.unlink()
        elif not path.is_file() or path.read_text("utf-8") != text:
            yield path
            if not check:
                path.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
