"""The verdict on a campaign: by the provider's own log, the rides' table and what clients got."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

from tests.databases import connect, executed
from tests.examples.rides.provider import Provider
from tests.proof.crash.boundaries import read
from tests.proof.crash.verdict import Verdict


def audit(
    folder: Path, provider: Provider, store: str, keys: list[str], wedged: list[str]
) -> Verdict:
    entries = provider.entries
    verdict = Verdict(len(keys), wedged=wedged)
    for fate in read(folder / "fates.jsonl"):
        kind = verdict.kills if fate["sign"] == 9 else verdict.stops
        kind[f"{fate['role']}: {fate['at']}"] += 1
    done = Counter((entry["status"], entry.get("ride")) for entry in entries)
    rows = rides_of(store)
    ours = {ride for key in keys for ride in rows[key]}
    verdict.redeliveries = sum(done["known", ride] for ride in ours)
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
    for answer in read(folder / "answers.jsonl"):
        if answer["status"] < 500 and answer["status"] != 409:
            answers[answer["key"]].add((answer["status"], answer["body"]))
    return answers


def rides_of(store: str) -> dict[str, list[str]]:
    """The ids of rides, by the pick-up, which is the client's key."""
    found: dict[str, list[str]] = defaultdict(list)
    with closing(connect(store)) as connection:
        for pickup, ride in executed(connection, "SELECT pickup, id FROM rides"):
            found[pickup].append(ride)
    return found
