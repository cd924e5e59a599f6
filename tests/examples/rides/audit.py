"""The verdict on a campaign: by the provider's own log, the rides' table and what clients got."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.examples.rides.provider import Provider


@dataclass
class Verdict:
    """What a campaign came to. Everything but the first four lines must be empty."""

    rides: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    redeliveries: int = 0
    """Receipts that came again, with a key that the provider knew. They are no duplicates."""
    duplicates: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wedged: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    """Keys whose clients got two different final answers."""

    @property
    def clean(self) -> bool:
        return not (self.duplicates or self.lost or self.wedged or self.differing)

    def add(self, other: Verdict) -> None:
        self.rides += other.rides
        self.kills += other.kills
        self.stops += other.stops
        self.redeliveries += other.redeliveries
        for name in ("duplicates", "lost", "wedged", "differing"):
            getattr(self, name).extend(getattr(other, name))


def audit(
    folder: Path, provider: Provider, store: str, keys: list[str], wedged: list[str]
) -> Verdict:
    fates = [json.loads(line) for line in _lines(folder / "fates.jsonl")]
    entries = provider.entries
    verdict = Verdict(len(keys), wedged=wedged)
    for fate in fates:
        kind = verdict.kills if fate["sign"] == 9 else verdict.stops
        kind[f"{fate['role']}: {fate['at']}"] += 1
    verdict.redeliveries = sum(entry["status"] == "known" for entry in entries)
    done = Counter((entry["status"], entry.get("ride")) for entry in entries)
    rows = _rows(store)
    for key, answers in _answers(folder, keys).items():
        _judge(verdict, key, answers, rows[key], done)
    known = {ride for rides in rows.values() for ride in rides}
    strangers = {entry["ride"] for entry in entries if "ride" in entry} - known
    verdict.duplicates += [f"a charge for the unknown ride {ride}" for ride in strangers]
    return verdict


def _judge(
    verdict: Verdict,
    key: str,
    answers: set[tuple[int, str]],
    rides: list[str],
    done: Counter[tuple[str, str | None]],
) -> None:
    if len(answers) > 1:
        verdict.differing.append(f"{key}: {sorted(answers)}")
    if not answers:
        verdict.wedged.append(f"{key}: no answer")
        return
    booked = 201 in {status for status, _ in answers}
    found = {
        "rides": len(rides),
        "charges": sum(done["charged", ride] for ride in rides),
        "receipts": sum(done["mailed", ride] for ride in rides),
    }
    meant = {"rides": 1, "charges": int(booked), "receipts": int(booked)}
    for what, count in found.items():
        if count > meant[what]:
            verdict.duplicates.append(f"{key}: {what} {count}")
        elif count < meant[what]:
            verdict.lost.append(f"{key}: {what} {count}")


def _answers(folder: Path, keys: list[str]) -> dict[str, set[tuple[int, str]]]:
    """The final answers that clients got, by key."""
    answers: dict[str, set[tuple[int, str]]] = {key: set() for key in keys}
    for line in _lines(folder / "answers.jsonl"):
        answer = json.loads(line)
        if answer["status"] < 500 and answer["status"] != 409:
            answers[answer["key"]].add((answer["status"], answer["body"]))
    return answers


def _rows(store: str) -> dict[str, list[str]]:
    """The ids of rides, by the pick-up, which is the client's key."""
    connection: Any = (
        psycopg.connect(store)
        if store.startswith("postgresql")
        else sqlite3.connect(store.removeprefix("sqlite:///"))
    )
    found: dict[str, list[str]] = defaultdict(list)
    with closing(connection):
        for pickup, ride in connection.execute("SELECT pickup, id FROM rides").fetchall():
            found[pickup].append(ride)
    return found


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []
