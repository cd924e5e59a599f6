"""The verdict: by the provider's files, the booked rows, and what clients were told.

What a route promises is read off here, and nothing that semel says of itself counts.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from tests.proof.crash.boundaries import read
from tests.proof.crash.provider import Entry, Provider
from tests.proof.crash.shop import EFFECTLESS, LEFT_TO_PEOPLE, STREAMED, answer
from tests.proof.crash.verdict import Verdict

FINAL = (201, 402)


@dataclass(frozen=True)
class Told:
    """A final answer: all of it but for what `client` says is of its delivery."""

    status: int
    nonce: str
    headers: tuple[tuple[str, str], ...]
    body: str


def finals(log: Path) -> dict[str, set[Told]]:
    """The final answers that clients got, by key."""
    found: dict[str, set[Told]] = defaultdict(set)
    for line in read(log):
        if line["status"] in FINAL:
            headers = tuple((name, text) for name, text in line["headers"])
            found[line["key"]].add(Told(line["status"], line["nonce"], headers, line["body"]))
    return found


def left_to_people(log: Path) -> set[str]:
    """Keys whose clients were told, with a refusal, that nobody but people can find out."""
    return _refused(log, "outcome-unknown")


def receipts(log: Path) -> set[str]:
    """Keys whose clients were told that it was done once, and that its answer was not kept."""
    return _refused(log, "body-not-kept")


def _refused(log: Path, code: str) -> set[str]:
    """Keys that were refused so for good."""
    found = set[str]()
    for line in read(log):
        if line["status"] == 409:
            problem = json.loads(line["body"])
            if problem["code"] == code and not problem["retryable"]:
                found.add(line["key"])
    return found


def audit(folder: Path, keys: dict[str, str], booked: list[Entry], wedged: list[str]) -> Verdict:
    """``keys``: the route of each. ``booked``: the rows of those in one transaction."""
    verdict = Verdict(len(keys), wedged=wedged)
    for fate in read(folder / "fates.jsonl"):
        kind = verdict.kills if fate["sign"] == 9 else verdict.stops
        kind[f"{fate['role']}: {fate['at']}"] += 1
    entries = defaultdict[str, list[Entry]](list)
    for entry in [*Provider(folder / "provider").entries(), *booked]:
        entries[entry.order].append(entry)
        verdict.redeliveries += entry.what == "known"
    _judge_begun(verdict, folder / "begun.jsonl", entries)
    before, after = finals(folder / "answers.jsonl"), finals(folder / "final.jsonl")
    unknown, kept = left_to_people(folder / "final.jsonl"), receipts(folder / "final.jsonl")
    for key, route in keys.items():
        told, effects = _alike(before[key] | after[key], route), _effects(entries[key])
        if len(told) > 1:
            verdict.differing.append(f"{route} {key}: {told}")
        if effects > 1:
            verdict.duplicates.append(f"{route} {key}: {entries[key]}")
        if after[key]:
            _judge(verdict, route, key, after[key], entries[key])
        elif route in STREAMED and key in kept:
            verdict.receipts += 1
            if not effects:
                verdict.lost.append(f"{route} {key}: no effect behind its receipt")
        elif before[key] and route not in STREAMED:
            verdict.lost.append(f"{route} {key}: {before[key]} was told, and is not on record")
        elif route not in LEFT_TO_PEOPLE or key not in unknown:
            verdict.wedged.append(f"{route} {key}: no end")
    strangers = set(entries) - set(keys) - {"-"}
    verdict.duplicates += [f"an effect of the unknown order {key}" for key in strangers]
    return verdict


def _alike(told: set[Told], route: str) -> set[Told]:
    """Nobody knows yet, when a stream begins, until when its record is kept."""
    if route not in STREAMED:
        return told
    late = "idempotency-expires"
    return {
        replace(each, headers=tuple(line for line in each.headers if line[0] != late))
        for each in told
    }


def _judge_begun(verdict: Verdict, log: Path, entries: dict[str, list[Entry]]) -> None:
    """What clients got of streams: of one effect, and as far as it came the same."""
    nonces = defaultdict[str, set[str]](set)
    for line in read(log):
        key, nonce, body = line["key"], line["nonce"], line["body"]
        nonces[key].add(nonce)
        if nonce not in {entry.nonce for entry in entries[key] if entry.what == "charged"}:
            verdict.lost.append(f"{key}: no effect behind a stream that was begun")
        if not answer(nonce)[2].startswith(body.encode()):
            verdict.differing.append(f"{key}: {body!r} was begun")
    several = [f"{key}: streams of {found}" for key, found in nonces.items() if len(found) > 1]
    verdict.differing += several


def _effects(entries: list[Entry]) -> int:
    return Counter(entry.what for entry in entries)["charged"]


def _judge(verdict: Verdict, route: str, key: str, told: set[Told], entries: list[Entry]) -> None:
    """An answer tells of what happened, and what happened is told."""
    what = "ran" if route in EFFECTLESS else "charged"
    nonces = {entry.nonce for entry in entries if entry.what == what}
    for each in told:
        if each.status == 201 and each.nonce not in nonces:
            verdict.lost.append(f"{route} {key}: no effect behind its answer")
        if each.status == 402 and nonces:
            verdict.lost.append(f"{route} {key}: {entries} behind its refusal")
