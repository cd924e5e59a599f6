"""The whole evening: raise the curtain, play the scenes, give the verdict, leave the doors open."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from semel.demo.act import Act, SceneFailed, World
from semel.demo.app import TOKENS, Payment
from semel.demo.scenes import SCENES, Scene
from semel.demo.servers import Server, ServerFailed
from semel.demo.stage import Outcome, Stage, console
from semel.errors import SemelError

INTERRUPTED = 130
"""What a shell reports for a program ended by Ctrl-C."""


def run(*, leave: bool, guarded: bool, folder: Path | None) -> int:
    """Play; returns the exit code: 0 when every card was charged as often as meant."""
    signal.signal(signal.SIGTERM, _end)
    stage = Stage(console())
    try:
        with _folder(folder) as place, _world(place, guarded) as world:
            return _play(world, stage, leave)
    except ServerFailed as error:
        print(f"semel demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        stage.gap()
        stage.line("stopped before the verdict")
        return INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds: servers are ended, the folder is removed


@contextmanager
def _folder(given: Path | None) -> Generator[Path, None, None]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as made:
        yield Path(made)


@contextmanager
def _world(folder: Path, guarded: bool) -> Generator[World, None, None]:
    with (
        Server("provider", "semel.demo.provider", folder) as provider,
        Server("API", "semel.demo.serve", folder) as api,
    ):
        world = World(folder, api, provider, guarded)
        try:
            world.start_provider()
            world.start_api()
            yield world
        finally:
            world.records.close()


def _play(world: World, stage: Stage, leave: bool) -> int:
    _curtain(world, stage)
    outcomes = [_scene(world, stage, number, scene) for number, scene in enumerate(SCENES, 1)]
    stage.verdicts(outcomes)
    good = all(outcome.verdict == "ok" for outcome in outcomes)
    _last_word(stage, outcomes, world.guarded)
    if not leave:
        _stay(world, stage)
    return 0 if good else 1


def _curtain(world: World, stage: Stage) -> None:
    stage.line(("semel demo", "bold"), ": a payments API, its payment provider, and bad days")
    stage.gap()
    kept = world.store if world.guarded else "none: semel is switched off (--unguarded)"
    api, provider = world.api, world.provider
    stage.line(f"   API       {api.url}  process {api.process.pid}  store {kept}")
    stage.line(
        f"   provider  {provider.url}  process {provider.process.pid}  ledger {world.ledger.path}"
    )
    stage.gap()
    stage.prose(
        "The provider is a pretend one, and a simple mind: it charges whenever it is asked and "
        "never looks for duplicates. What it charges stands in its own ledger, and there the "
        "charges below are counted."
    )
    if not world.guarded:
        stage.gap()
        stage.prose(
            "This time semel is switched off. Every scene still says what ought to happen; watch "
            "what does.",
            "bold yellow",
        )
    stage.gap()
    stage.line("   →  a client's request     ←  its answer     =  what happened underneath")


def _scene(world: World, stage: Stage, number: int, scene: Scene) -> Outcome:
    stage.scene(number, scene.title, scene.shows)
    act = Act(world, stage, number)
    try:
        scene.play(act)
    except (SceneFailed, ServerFailed, SemelError, OSError) as error:
        act.complain(f"the scene broke off: {error}")
    outcome = act.outcome(scene.title)
    stage.scene_ends(outcome)
    return outcome


def _last_word(stage: Stage, outcomes: Sequence[Outcome], guarded: bool) -> None:
    meant = sum(outcome.meant for outcome in outcomes)
    made = sum(outcome.made for outcome in outcomes)
    stage.gap()
    if all(outcome.verdict == "ok" for outcome in outcomes):
        stage.line((f"PASS: {meant} charges meant, {made} made.", "bold green"))
        return
    stage.line((f"FAIL: {meant} charges meant, {made} made.", "bold red"))
    if not guarded:
        stage.line("That was without semel. To see the same scenes with it: semel demo")


# ── leaving the API up ────────────────────────────────────────────────────────────────────────────


def _stay(world: World, stage: Stage) -> None:
    stage.gap()
    off = "" if world.guarded else " (semel is off: what should be refused is not)"
    stage.line((f"The API stays up. Lines to try{off}:", "bold"))
    for what, command in tries(world.api.url, world.provider.url):
        stage.gap()
        stage.line((f"# {what}", "dim"))
        stage.line(command)
    stage.gap()
    stage.line(("Ctrl-C ends the demo.", "bold"))
    try:
        world.api.process.wait()
        stage.line("The API has ended by itself.")
    except KeyboardInterrupt:
        stage.gap()


def tries(api: str, provider: str) -> list[tuple[str, str]]:
    """What to try, and the command for it."""
    tern, wren = TOKENS
    order = Payment("order-901", 1250, "EUR", "card_ok")
    dearer = Payment("order-901", 9900, "EUR", "card_ok")
    declined = Payment("order-902", 1250, "EUR", "card_declined")
    silent = Payment("order-903", 1250, "EUR", "card_silent")
    return [
        ("pay; send it again, and the answer comes from the record", _curl(api, tern, order)),
        ("the same key for another amount: refused", _curl(api, tern, dearer)),
        ("another merchant, the same key: a payment of its own", _curl(api, wren, order)),
        ("no key: refused, this API requires one", _curl(api, tern, order, key="")),
        (
            "a declined card: that is an answer too, and kept",
            _curl(api, tern, declined, key="my-second-payment"),
        ),
        (
            "the provider charges and hangs up: unknown; send it again, and it is not run again",
            _curl(api, tern, silent, key="my-third-payment"),
        ),
        ("what the provider has really charged", f"curl -s '{provider}/charges?order=order-901'"),
    ]


def _curl(api: str, token: str, payment: Payment, key: str = "my-first-payment") -> str:
    """One command in three lines, to be read as well as pasted."""
    named = f" -H 'Idempotency-Key: {key}'" if key else ""
    document = json.dumps(asdict(payment), separators=(",", ":"))
    return (
        f"curl -i {api}/payments{named} \\\n"
        f"  -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(document)}"
    )
