"""Within its window a process answers retries without asking the store; never past it."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

import semel
from semel.core.exchange.settings_changed import announce
from semel.core.flow import run
from semel.core.operations.acts import Act
from semel.core.operations.maintenance import Browse
from semel.core.operations.requests import Evict
from semel.core.records import Identity, Request, State
from semel.core.stored.snapshot import LARGE
from semel.operators.operator import KeyAddress
from semel.runtime.replay_cache import LONGEST, ReplayCache
from semel.stores.base import Backend, performer
from semel.stores.memory import MemoryBackend
from tests.forms import in_proof
from tests.servers import AppServer, ValkeyServer, gunicorn, uvicorn
from tests.waiting import patient
from tests.web.client import Client, new_key
from tests.web.colours import Said
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import Ask
from tests.web.effects import Effects
from tests.web.served import databases_of, store_url

ACT = Act("ann", "to see what it does")
MINUTE = timedelta(minutes=1)
LONG = LONGEST
"""No test outlives it."""
SHORT = timedelta(milliseconds=300)
RESOURCE = "thing:7"


def take_away(backend: Backend) -> int:
    """Remove every completed record behind the guards' backs: who asks the store runs again."""
    store = backend.blocking()
    cases = store.perform(Browse((State.COMPLETED,), 100)).cases
    for case in cases:
        store.perform(Evict(case.record.identity, case.record.fence, ACT))
    return len(cases)


def tenant_of(request: Request) -> str:
    return request.headers["x-tenant"]


def of(tenant: str) -> Ask:
    return Ask(headers=(("content-type", "application/json"), ("x-tenant", tenant)))


@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_in_the_window_the_store_is_not_asked(
    serve: Serve,
    mode: Literal["leased", "atomic"],
    make_guard: MakeGuard,
    effects: Effects,
    tmp_path: Path,
) -> None:
    policy = semel.ietf(mode=mode)
    guard = make_guard(f"sqlite:///{tmp_path / 'keys.db'}", policy=policy, replay_cache=LONG)
    send = serve(guard=guard)
    first, second = send(), send()
    assert take_away(guard.backend) == 1
    third = send()
    assert (second.body, third.body) == (first.body, first.body)
    assert second.headers == third.headers
    assert third.replayed
    assert len(effects.all()) == 1


@pytest.mark.parametrize("how", ["asked", "window", "bodies"])
@pytest.mark.parametrize("mode", ["leased", "atomic"])
def test_a_large_answer_is_repeated_byte_for_byte(
    serve: Serve, how: str, mode: Literal["leased", "atomic"], make_guard: MakeGuard, tmp_path: Path
) -> None:
    """It does not come with its record."""
    body = os.urandom(3 * LARGE)
    options: dict[str, Any] = {
        "asked": {},
        "window": {"replay_cache": LONG},
        "bodies": {"replay_bodies": 100 * LARGE},
    }
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    guard = make_guard(url, policy=semel.ietf(mode=mode), **options[how])
    send = serve(lambda: Said(body), guard=guard)
    replies = [send() for _ in range(3)]
    assert [reply.body for reply in replies] == [body] * 3
    assert [reply.replayed for reply in replies] == [False, True, True]
    if how == "window":
        assert take_away(guard.backend) == 1
        assert send().replayed


def test_without_a_window_every_replay_asks(serve: Serve, guard: semel.Guard) -> None:
    send = serve(guard=guard)
    first = send()
    assert send().body == first.body
    take_away(guard.backend)
    assert send().body != first.body


def test_another_payload_and_another_tenant_get_no_answer_from_memory(
    serve: Serve, make_guard: MakeGuard
) -> None:
    guard = make_guard(tenant=tenant_of, replay_cache=LONG)
    send = serve(guard=guard)
    first = send(of("ann"))
    assert send(of("ann")).body == first.body
    take_away(guard.backend)
    other = Ask(body=b'{"amount": 2}', headers=of("ann").headers)
    assert send(other).code == "key-reused"
    assert send(of("bob")).body != first.body
    assert send(of("ann")).body == first.body


def test_a_deferred_answer_is_repeated_too(serve: Serve) -> None:
    """Completed by a run under another policy: what counts is that the record is completed."""
    memory = MemoryBackend()
    first = serve(store=memory)()
    policy = semel.accepted(mode="deferred", required=True)
    send = serve(store=memory, policy=policy, replay_cache=LONG)
    assert send().body == first.body
    take_away(memory)
    assert send().body == first.body


def test_the_window_begins_before_the_store_is_asked(serve: Serve, make_guard: MakeGuard) -> None:
    """An answer that took 40 seconds to come is 40 seconds old."""
    uptime, takes = [100.0], [0.0]

    def clock() -> int:
        uptime[0], takes[0] = uptime[0] + takes[0], 0.0
        return int(uptime[0] * 1_000_000)

    guard = make_guard(MemoryBackend(clock=clock), maintenance=None)
    guard.runtime.replays = ReplayCache(MINUTE, clock=lambda: uptime[0])
    send = serve(guard=guard)
    first = send()
    takes[0] = 40.0
    assert send().body == first.body
    assert take_away(guard.backend) == 1
    uptime[0] += 19
    assert send().body == first.body
    uptime[0] += 1
    assert send().body != first.body


def test_a_function_run_once_is_remembered(make_guard: MakeGuard, effects: Effects) -> None:
    guard = make_guard(replay_cache=LONG)

    def work() -> str:
        return effects.happen("-")

    async def awork() -> str:
        return effects.happen("-")

    key = "message-7f3a9c0e41"
    first = guard.once(key, work, name="work")
    assert guard.once(key, work, name="work").value == first.value
    take_away(guard.backend)
    again = guard.once(key, work, name="work")
    assert (again.value, again.replayed) == (first.value, True)
    assert asyncio.run(guard.aonce(key, awork, name="work")).value == first.value


def test_while_the_store_is_down_the_window_still_answers_and_nothing_is_run(
    serve: Serve, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    with ValkeyServer() as server:
        guard = make_guard(server.url, replay_cache=LONG)
        send = serve(guard=guard)
        first = send()
        assert send().body == first.body
        server.kill()
        assert send().body == first.body
        assert send(Ask(key=new_key())).code == "store-unavailable"
        assert len(effects.all()) == 1
        guard.close()
        runner.run(guard.backend.aclose())


def test_the_window_is_said_in_the_store_before_it_is_used(
    serve: Serve, make_guard: MakeGuard
) -> None:
    guard = make_guard(replay_cache=LONG)
    serve(guard=guard)()
    said = run(announce(0), performer(guard.backend.blocking()))
    assert said == LONG // timedelta(microseconds=1)


def test_retiring_takes_as_long_as_anybodys_window(make_guard: MakeGuard) -> None:
    memory = MemoryBackend()
    make_guard(memory, replay_cache=SHORT).start()
    tool = make_guard(memory)
    for awaited in (False, True):
        began = time.monotonic()
        assert (asyncio.run(tool.aretire("x")) if awaited else tool.retire("x")) == 0
        assert time.monotonic() - began >= SHORT.total_seconds()


def test_who_evicts_says_who_and_why(guard: semel.Guard) -> None:
    operator = guard.operator()
    with pytest.raises(semel.ConfigurationError, match="by="):
        operator.evict(Identity(bytes(32)), by="ann", reason=" ")


def test_what_is_in_flight_is_not_evicted_and_not_said_to_be(
    guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    operator = guard.operator()
    where = KeyAddress("", "ONCE", "/work", "message-7f3a9c0e41")
    refused: list[str] = []

    def work() -> None:
        found = operator.find(where)
        assert found is not None
        written = operator.evict(found.case.record.identity, by="ann", reason="a try")
        refused.append(type(written).__name__)

    guard.once(where.key, work, name="work")
    assert refused == ["Lost"]
    assert "evicted" not in caplog.text
    found = operator.find(where)
    assert found is not None
    operator.evict(found.case.record.identity, by="ann", reason="a try")
    assert "ann evicted" in caplog.text
    assert operator.find(where) is None


# ── several processes ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Nodes:
    """Two processes that remember, and a tool beside them that has no window of its own."""

    one: Client
    other: Client
    tool: semel.Guard

    def remembered(self) -> tuple[str, bytes]:
        """A key whose answer both nodes have read just now."""
        key = new_key()
        first = self.one.post("/x", key)
        assert first.status == 200
        for node in (self.one, self.other):
            assert node.post("/x", key).body == first.body
        return key, first.body


def server(colour: str, env: dict[str, str]) -> AppServer:
    if colour == "asgi":
        return uvicorn("tests.web.remembering_app:app", env=env)
    return gunicorn("tests.web.remembering_app:application", threads=2, env=env)


@pytest.fixture(
    scope="module",
    params=[
        ("wsgi", "postgres"),
        ("asgi", "redis"),
        *in_proof(("asgi", "sqlite"), ("wsgi", "mysql")),
    ],
    ids="-".join,
)
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    """For all tests: who was asked to forget one key still has the others."""
    colour, store = request.param
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        if store == "redis":
            url = stack.enter_context(ValkeyServer()).url
        else:
            url = stack.enter_context(store_url(store, folder, databases_of(request)))
        env = {
            "SEMEL_TEST_STORE": patient(url),
            "SEMEL_TEST_EFFECTS": str(folder / "effects"),
            "SEMEL_TEST_RESOURCE": RESOURCE,
        }
        one, other = (stack.enter_context(server(colour, env)) for _ in range(2))
        tool = semel.Guard(patient(url), tenant=None, maintenance=None)
        yield Nodes(Client(one.url), Client(other.url), tool)
        tool.close()


def test_what_was_evicted_is_repeated_by_no_process(nodes: Nodes) -> None:
    key, body = nodes.remembered()
    operator = nodes.tool.operator()
    found = operator.find(KeyAddress("", "POST", "/x", key))
    assert found is not None
    operator.evict(found.case.record.identity, by="ann", reason="sent by mistake")
    anew = nodes.other.post("/x", key)
    assert anew.status == 200
    assert anew.body != body
    assert nodes.one.post("/x", key).body == anew.body


def test_what_was_retired_is_repeated_by_no_process(nodes: Nodes) -> None:
    key, _ = nodes.remembered()
    assert nodes.tool.retire(RESOURCE) >= 1
    for node in (nodes.other, nodes.one):
        assert node.post("/x", key).code == "replay-impossible"


def test_evicting_again_waits_again(nodes: Nodes) -> None:
    """Whoever lost the first answer must not be told that all is done."""
    key, body = nodes.remembered()
    operator = nodes.tool.operator()
    found = operator.find(KeyAddress("", "POST", "/x", key))
    assert found is not None
    identity, fence = found.case.record.identity, found.case.record.fence
    nodes.tool.backend.blocking().perform(Evict(identity, fence, ACT))
    assert operator.evict(identity, by="ann", reason="sent by mistake") is None
    assert nodes.other.post("/x", key).body != body
