"""Records in doubt, on any store whose clock can be moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.flow import Flow, run
from semel.core.policy import Policy, ietf
from semel.core.records import Case, Fence, Identity, Micros, OnLapse, Origin, State
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal, PointKind
from semel.core.request import keys
from semel.core.stored.snapshot import Snapshot, encode
from semel.core.terms import EVERY_ROUTE
from semel.guard import Guard
from semel.runtime.flow_runner import FlowRunner
from semel.stores.base import performer
from tests.stores.harness import OUTBOXES, STORES, Harness, open_harness, server_of

SECOND: Micros = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
KEY = "an-opaque-key-of-some-length"
NAMES = [f"{store}-sync" for store in STORES if store not in ("partitioned", "rediscluster")]
"""How a store is divided makes no difference to those who settle."""
WITH_OUTBOX = pytest.mark.parametrize(
    "scene", [name for name in NAMES if name in OUTBOXES], indirect=True
)

_numbers = count(1)


def fresh_fence() -> Fence:
    return Fence(next(_numbers).to_bytes(16, "big"))


class Scene:
    """A store with a guard on it."""

    def __init__(self, harness: Harness, policy: Policy | None = None, **options: Any) -> None:
        self.harness = harness
        options = {"tenant": None, "maintenance": None, "policy": policy or ietf(), **options}
        self.guard = Guard(harness.backend, **options)
        self.runner = FlowRunner(self.guard)
        self.fences: dict[Identity, Fence] = {}

    def new_identity(self) -> Identity:
        """In the order in which records are made."""
        return Identity(next(_numbers).to_bytes(32, "big"))

    def travel(self, duration: Micros) -> None:
        self.harness.travel(duration)

    def run(self, flow: Flow[Any]) -> Any:
        return run(flow, performer(self.harness.backend.blocking()))

    def held(
        self,
        *points: str,
        intent: str | None = None,
        path: str = "/payments",
        method: str = "POST",
        on_lapse: OnLapse = OnLapse.UNKNOWN,
        request: bytes | None = None,
        route: str = EVERY_ROUTE,
        policy: Policy | None = None,
        tenant: str = "tern",
    ) -> Identity:
        """A record in progress; with points it is an operation that can be resumed."""
        terms = self.guard.runtime.plan(route, policy or self.guard.policy).terms
        self.harness.perform(ops.Agree(terms))
        identity = self.new_identity()
        fence = self.fences[identity] = fresh_fence()
        if points or intent:
            on_lapse = OnLapse.RESUME
        origin = Origin(tenant, method, path, KEY)
        claim = ops.Claim(
            *(identity, fence, "r1.x", b"", origin, MINUTE, on_lapse),
            request=request,
            terms=terms.id,
        )
        assert isinstance(self.harness.perform(claim), ops.Claimed)
        written = Journal()
        for name in points:
            written = written.reaching(name, PointKind.PHASE, {"of": name})
        if intent is not None:
            written = written.intending(intent)
        if written.points:
            self.harness.perform(ops.Advance(identity, fence, journal.encode(written)))
        return identity

    def unknown(
        self,
        *points: str,
        probe_after: Micros | None = 0,
        reason: str = "TimeoutError",
        **how: Any,
    ) -> Identity:
        identity = self.held(*points, **how)
        op = ops.Suspend(identity, self.fences[identity], reason, probe_after)
        self.harness.perform(op)
        assert self.state(identity) is State.UNKNOWN
        return identity

    def completed(self, body: bytes = b"made", status: int = 201, **how: Any) -> Identity:
        identity = self.held(**how)
        kept = encode(Snapshot(status, (), body, len(body)))
        self.harness.perform(ops.Complete(identity, self.fences[identity], kept, HOUR, HOUR))
        return identity

    def released(self, **how: Any) -> Identity:
        identity = self.held(**how)
        self.harness.perform(ops.Release(identity, self.fences[identity], HOUR, "NotExecuted"))
        return identity

    def recalled(self, identity: Identity) -> ops.Recalled:
        found = self.harness.perform(ops.Recall(identity))
        assert isinstance(found, ops.Recalled), found
        return found

    def case(self, identity: Identity) -> Case:
        return self.recalled(identity).case

    def key_of(self, identity: Identity, name: str, kind: keys.Kind = "call") -> str:
        """The downstream key of a call or an effect."""
        created_at = self.case(identity).record.created_at
        return keys.downstream_key(identity, created_at, kind, name)

    def state(self, identity: Identity) -> State:
        return self.case(identity).record.state


@contextmanager
def scene_on(
    name: str,
    folder: Path,
    request: pytest.FixtureRequest,
    policy: Policy | None = None,
    **options: Any,
) -> Iterator[Scene]:
    with open_harness(name, folder, server_of(request, name)) as harness:
        yield Scene(harness, policy, **options)


# ── fixtures, for the conftest of each folder that uses them ──────────────────────────────────────


@pytest.fixture(params=NAMES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def quick(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """In memory, for what does not depend on the store."""
    with scene_on("memory-sync", tmp_path, request) as made:
        yield made
