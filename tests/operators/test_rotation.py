"""Rotation: everything comes under the current key, beside traffic, killed or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.maintenance import Browse
from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf
from semel.core.operations.requests import Advance
from semel.core.operations.resealing import ListUnlike, Part, Reseal
from semel.core.records import State
from semel.errors import ConfigurationError
from semel.operators import rotation
from semel.operators.rotation import Rotation
from semel.stores.encryption import EncryptedBackend, Encryption
from semel.testing.contract.records import claim, new_fence, new_identity
from tests.servers import PostgresServer, ValkeyServer
from tests.waiting import PATIENCE, patient

OLD, NEW = os.urandom(32), os.urandom(32)
BOTH = {"old": OLD, "new": NEW}
COUNT = 20


def key(number: int) -> str:
    return f"a-key-of-a-client-{number}"


def guard_on(url: str, keys: dict[str, bytes], current: str, **options: Any) -> semel.Guard:
    given = Encryption(keys, current, **options)
    return semel.Guard(patient(url), tenant=None, encryption=given, migrate=True, maintenance=None)


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/semel.db"
        case "redis":
            valkey: ValkeyServer = request.getfixturevalue("valkey")
            yield f"{valkey.url}?prefix=rotation"
        case "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            with server.database() as database:
                yield database
        case _:
            yield request.getfixturevalue("mariadb_url")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/semel.db"


def paid(number: int) -> dict[str, int]:
    return {"paid": number}


def fill(guard: semel.Guard, numbers: range) -> None:
    for number in numbers:
        guard.once(key(number), partial(paid, number), name="pay")


def replays(guard: semel.Guard, numbers: range) -> bool:
    def again() -> None:
        pytest.fail("it ran again")

    ran = [guard.once(key(number), again, name="pay").value for number in numbers]
    return ran == [{"paid": number} for number in numbers]


def rotate(guard: semel.Guard) -> Rotation:
    return guard.operator().rotate(by="ann", reason="a new year")


def test_everything_comes_under_the_current_key_and_the_old_one_can_go(url: str) -> None:
    before = guard_on(url, {"old": OLD}, "old")
    before.migrate()
    fill(before, range(COUNT))
    outbox = before.backend.capabilities.outbox
    if outbox:
        for number in range(3):
            before.backend.blocking().perform(Enqueue(str(number), None, "mail", b"%d" % number))
    both = guard_on(url, BOTH, "new")
    assert replays(both, range(COUNT))
    done = rotate(both)
    assert (done.resealed, done.remaining) == (COUNT + 3 * outbox, 0)
    assert rotate(both).resealed == 0  # it knows what is done
    after = guard_on(url, {"new": NEW}, "new")
    assert replays(after, range(COUNT))
    if outbox:
        effects = after.backend.blocking().perform(BrowseEffects(Shelf.WAITING, 9)).effects
        assert [effect.payload for effect in effects] == [b"0", b"1", b"2"]
    said = [(entry.verb, entry.by, entry.subject) for entry in after.operator().audit()]
    assert said == [("rotate", "operator ann", "new")] * 4
    for guard in (before, both, after):
        guard.close()


def test_beside_traffic_nothing_is_lost(url: str) -> None:
    """Old processes still write under the old key, and every answer counts."""
    old, both = guard_on(url, BOTH, "old"), guard_on(url, BOTH, "new")
    old.migrate()
    fill(old, range(COUNT))
    running = threading.Event()
    errors: list[BaseException] = []

    def traffic() -> None:
        try:
            for number in range(COUNT, 3 * COUNT):
                fill(old if number % 2 else both, range(number, number + 1))
                assert replays(both, range(number - COUNT, number - COUNT + 1))
                running.set()
        except BaseException as error:
            errors.append(error)
        finally:
            running.set()

    thread = threading.Thread(target=traffic)
    thread.start()
    running.wait()
    while thread.is_alive():
        rotate(both)
    thread.join()
    assert errors == []
    assert rotate(both).remaining == 0
    after = guard_on(url, {"new": NEW}, "new")
    assert replays(after, range(3 * COUNT))
    for guard in (old, both, after):
        guard.close()


def test_what_a_request_writes_meanwhile_stays(sqlite_url: str) -> None:
    """Between reading a value and exchanging it, its record is another's."""
    old, both = guard_on(sqlite_url, {"old": OLD}, "old"), guard_on(sqlite_url, BOTH, "new")
    fill(old, range(1))
    backend = both.backend
    assert isinstance(backend, EncryptedBackend)
    raw = backend.inner.blocking()
    (seen,) = raw.perform(ListUnlike(backend.sealer.encryption.prefix, 9)).found
    assert seen.snapshot is not None
    plain = backend.sealer.open(seen, Part.SNAPSHOT, seen.snapshot)
    mine = backend.sealer.seal(seen.identity, seen.fence, Part.SNAPSHOT, plain)
    identity = seen.identity
    old.operator().evict(identity, by="ann", reason="to make room")
    old.once(key(0), lambda: {"paid": "anew"}, name="pay")
    raw.perform(Reseal(identity, seen.fence, Part.SNAPSHOT, seen.snapshot, mine))
    assert old.once(key(0), lambda: None, name="pay").value == {"paid": "anew"}


def test_what_no_key_opens_is_counted_and_named_and_left(sqlite_url: str) -> None:
    fill(guard_on(sqlite_url, {"old": OLD}, "old"), range(2))
    ignorant = guard_on(sqlite_url, {"new": NEW}, "new")
    fill(ignorant, range(2, 3))
    done = rotate(ignorant)
    assert (done.resealed, done.unreadable, done.remaining) == (0, 2, 2)
    assert done.reason is not None
    assert "'old'" in done.reason
    assert replays(guard_on(sqlite_url, BOTH, "new"), range(3))


def test_plain_values_are_encrypted_when_they_are_accepted(sqlite_url: str) -> None:
    with closing(semel.Guard(patient(sqlite_url), tenant=None, maintenance=None)) as plain:
        fill(plain, range(3))
    lenient = guard_on(sqlite_url, {"new": NEW}, "new", accept_plain=True)
    assert rotate(lenient).resealed == 3
    assert replays(guard_on(sqlite_url, {"new": NEW}, "new"), range(3))


def test_a_guard_without_encryption_has_nothing_to_rotate(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing is encrypted here"):
        rotate(semel.Guard(sqlite_url, tenant=None))


def test_pages_are_small_and_progress_is_told(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(guard_on(sqlite_url, {"old": OLD}, "old"), range(7))
    monkeypatch.setattr(rotation, "PAGE", 3)
    told: list[int] = []
    guard_on(sqlite_url, BOTH, "new").operator().rotate(
        by="ann", reason="x", progress=lambda so_far: told.append(so_far.resealed)
    )
    assert told[:3] == [3, 6, 7]


# ── killed in the middle ──────────────────────────────────────────────────────────────────────────

KILLED = """
import json, os, signal, sys
from semel.core.operations.acts import Act
from semel.operators import rotation
from semel.operators.rotation import Rotator
import semel

url, keys, after = json.loads(sys.argv[1])
guard = semel.Guard(url, tenant=None, encryption=semel.Encryption(keys, "new"), maintenance=None)
rotation.PAGE = 10

def progress(so_far):
    if so_far.resealed >= after:
        os.kill(os.getpid(), signal.SIGKILL)

Rotator(guard, Act("ann", "killed")).run(progress)
"""


def test_killed_in_the_middle_it_is_simply_begun_again(sqlite_url: str) -> None:
    fill(guard_on(sqlite_url, {"old": OLD}, "old"), range(COUNT))
    keys = {name: b64encode(given).decode() for name, given in BOTH.items()}
    given = json.dumps([patient(sqlite_url), keys, COUNT // 2])
    killed = subprocess.run([sys.executable, "-c", KILLED, given], check=False, timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL
    both = guard_on(sqlite_url, BOTH, "new")
    assert replays(both, range(COUNT))  # half under one key, half under the other
    done = rotate(both)
    assert (done.resealed, done.remaining) == (COUNT // 2, 0)
    assert replays(guard_on(sqlite_url, {"new": NEW}, "new"), range(COUNT))
    begun = [entry for entry in both.operator().audit() if entry.reason.startswith("begun")]
    assert len(begun) == 2  # the act of the one that was killed is on record
    assert begun[1].by == "ann"


def test_unsettled_records_are_encrypted_anew_as_well(sqlite_url: str) -> None:
    old, both = guard_on(sqlite_url, {"old": OLD}, "old"), guard_on(sqlite_url, BOTH, "new")
    identity, fence = new_identity(), new_fence()
    store = old.backend.blocking()
    store.perform(claim(identity, fence, request=b"request"))
    store.perform(Advance(identity, fence, b"journal"))
    assert rotate(both).resealed == 2
    after = guard_on(sqlite_url, {"new": NEW}, "new").backend.blocking()
    (case,) = after.perform(Browse((State.IN_PROGRESS,), 9)).cases
    assert (case.request, case.journal) == (b"request", b"journal")
    assert case.record.fence == fence
