"""Plays the demo: starts the servers, runs the scenes, prints the verdict, leaves the API up, and
the console beside it."""

from __future__ import annotations

import io
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
from typing import Any

from examples.demo.app import TOKENS, Payment
from examples.demo.printer import Printer, SceneResult
from examples.demo.roll_out import RollOut
from examples.demo.scene_run import DemoSetup, SceneFailed, SceneRun
from examples.demo.scenes import SCENES, Scene
from examples.demo.servers import Server, ServerFailed
from semel.errors import SemelError

INTERRUPTED = 130
"""What a shell reports for a program ended by Ctrl-C."""


def run(*, leave: bool, guarded: bool, folder: Path | None, roll_out: bool = False) -> int:
    """Play; returns the exit code: 0 when every card was charged as often as meant."""
    signal.signal(signal.SIGTERM, _end)
    stdout: Any = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="replace")  # no character is worth a crash
    printer = Printer(sys.stdout)
    try:
        with _folder(folder) as place, _setup(place, guarded, roll_out) as setup:
            if roll_out:
                return _play_roll_out(setup, printer)
            return _play(setup, printer, leave)
    except ServerFailed as error:
        print(f"semel demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        printer.gap()
        printer.line("stopped before the verdict")
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
def _setup(folder: Path, guarded: bool, roll_out: bool) -> Generator[DemoSetup, None, None]:
    with (
        Server("provider", "examples.demo.provider", folder) as provider,
        Server("API", "examples.demo.serve", folder) as api,
    ):
        setup = DemoSetup(folder, api, provider, guarded, "shadow" if roll_out else "full")
        try:
            setup.start_provider()
            setup.start_api()
            yield setup
        finally:
            setup.records.close()


def _play(setup: DemoSetup, printer: Printer, leave: bool) -> int:
    good = _play_scenes(setup, printer, SCENES)
    if not leave:
        with Server("console", "examples.demo.console", setup.folder) as console:
            _keep_api_up(setup, printer, console)
    return 0 if good else 1


def _play_roll_out(setup: DemoSetup, printer: Printer) -> int:
    with Server("enforcing API", "examples.demo.serve", setup.folder) as enforcing:
        return 0 if _play_scenes(setup, printer, RollOut(enforcing).scenes()) else 1


def _play_scenes(setup: DemoSetup, printer: Printer, scenes: Sequence[Scene]) -> bool:
    _introduce(setup, printer)
    outcomes = [_scene(setup, printer, number, scene) for number, scene in enumerate(scenes, 1)]
    printer.verdicts(outcomes)
    _print_verdict(printer, outcomes, setup.guarded)
    return all(outcome.verdict == "ok" for outcome in outcomes)


def _introduce(setup: DemoSetup, printer: Printer) -> None:
    printer.line(("semel demo", "bold"), ": a payments API, its payment provider, and bad days")
    printer.gap()
    kept = setup.store if setup.guarded else "none: semel is switched off (--unguarded)"
    api, provider = setup.api, setup.provider
    printer.line(f"   API       {api.url}  process {api.process.pid}  store {kept}")
    printer.line(
        f"   provider  {provider.url}  process {provider.process.pid}  ledger {setup.ledger.path}"
    )
    printer.gap()
    printer.prose(
        "The provider is a pretend one, and a simple mind: it charges whenever it is asked and "
        "never looks for duplicates. What it charges stands in its own ledger, and there the "
        "charges below are counted."
    )
    if not setup.guarded:
        printer.gap()
        printer.prose(
            "This time semel is switched off. Every scene still says what ought to happen; watch "
            "what does.",
            "bold yellow",
        )
    printer.gap()
    printer.line("   →  a client's request     ←  its answer     =  what happened underneath")


def _scene(setup: DemoSetup, printer: Printer, number: int, scene: Scene) -> SceneResult:
    printer.scene(number, scene.title, scene.shows)
    run = SceneRun(setup, printer, number)
    try:
        scene.play(run)
    except (SceneFailed, ServerFailed, SemelError, OSError) as error:
        run.complain(f"the scene broke off: {error}")
    outcome = run.outcome(scene.title)
    printer.scene_ends(outcome)
    return outcome


def _print_verdict(printer: Printer, outcomes: Sequence[SceneResult], guarded: bool) -> None:
    meant = sum(outcome.meant for outcome in outcomes)
    made = sum(outcome.made for outcome in outcomes)
    printer.gap()
    if all(outcome.verdict == "ok" for outcome in outcomes):
        printer.line((f"PASS: {meant} charges meant, {made} made.", "bold green"))
        return
    printer.line((f"FAIL: {meant} charges meant, {made} made.", "bold red"))
    if not guarded:
        printer.line("That was without semel. To see the same scenes with it: semel demo")


# ── leaving the API up ────────────────────────────────────────────────────────────────────────────


def _keep_api_up(setup: DemoSetup, printer: Printer, console: Server) -> None:
    printer.gap()
    off = "" if setup.guarded else " (semel is off: what should be refused is not)"
    printer.line((f"The API stays up. Lines to try{off}:", "bold"))
    for what, command in tries(setup.api.url, setup.provider.url):
        printer.gap()
        printer.line((f"# {what}", "dim"))
        printer.line(command)
    printer.gap()
    if setup.guarded:
        console.start([setup.store])
        printer.line(("The console shows the records of these scenes:", "bold"))
        printer.line(f"   {console.address}  process {console.process.pid}")
        printer.line("   The address works once. What you try above can be seen there too.")
        printer.gap()
    printer.line(("Ctrl-C ends the demo.", "bold"))
    try:
        setup.api.process.wait()
        printer.line("The API has ended by itself.")
    except KeyboardInterrupt:
        printer.gap()


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
