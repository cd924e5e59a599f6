"""``python -m bench.calls``: how many calls of semel's own functions one request makes.

Unlike time, this is the same on every machine: whoever makes the way of a request longer sees it
here, and `tests/bench/test_calls.py` has a budget for it. Counted are calls of functions and
comprehensions in semel's files, and every turn of its generators, in all threads that a request
goes through; what a process does once is not. *Steps* are the bytecodes that those functions run in
the thread of the event loop: the same on every machine with the same Python.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import semel
from bench.plans import BODY
from semel.web.asgi_exchange import AsgiApp, Message, Receive, Scope, Send

OWN = str(Path(semel.__file__).parent)
WARM = 20
"""Requests before the one that counts."""
SELDOM = frozenset({"_http_date"})
"""Done once in a second, and not in every request: whether it falls into the one that counts is
luck."""


@dataclass(frozen=True)
class Counted:
    """What one request took."""

    store: str
    way: str
    calls: int
    modules: int
    made: int
    """Objects of semel's own that were made."""
    steps: int
    """Bytecodes of semel's own functions."""
    most: tuple[tuple[str, int], ...]
    """The functions that were called most."""


class Meter:
    """Counts calls, in this thread and in those that begin later."""

    def __init__(self) -> None:
        self._counting = False
        self.calls: Counter[tuple[str, str]] = Counter()
        self.made = 0
        threading.setprofile(self._note)

    @contextmanager
    def counting(self) -> Iterator[None]:
        self.calls.clear()
        self.made = 0
        self._counting = True
        sys.setprofile(self._note)
        yield
        sys.setprofile(None)
        self._counting = False

    def close(self) -> None:
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._counting or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(OWN) and code.co_name not in SELDOM:
            self.calls[code.co_filename[len(OWN) + 1 :], code.co_qualname] += 1
        if code.co_name == "__init__":  # that of frozen classes was made of text, and is in no file
            made, maker = frame.f_locals[code.co_varnames[0]], frame.f_back
            base = maker is not None and maker.f_locals.get("self") is made  # that of its base
            self.made += type(made).__module__.startswith("semel.") and not base


class Steps:
    """Counts bytecodes, in this thread."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        self.count = 0
        sys.settrace(self._note)
        yield
        sys.settrace(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code  # in our files, or made of text: `frozen`
        if not code.co_filename.startswith((OWN, "<string>")) or code.co_name in SELDOM:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._note


async def pay(scope: Scope, receive: Receive, send: Send) -> None:
    """The least that an application does: read the body, answer."""
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"11")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"paid": 1}'})


async def ask(app: AsgiApp, key: str) -> int:
    """One request, as a server hands it over; the status of its answer."""
    said: list[int] = []
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/payments",
        "raw_path": b"/payments",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"shop.test"),
            (b"content-type", b"application/json"),
            (b"idempotency-key", key.encode()),
        ],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    await app(scope, receive, send)
    return said[0]


def counted(store: str, url: str, **options: Any) -> list[Counted]:
    """A fresh request and a replay, on one store, by a guard with these options."""
    meter = Meter()
    try:
        return asyncio.run(_counted(meter, store, url, options))
    finally:
        meter.close()


async def _counted(meter: Meter, store: str, url: str, options: Mapping[str, Any]) -> list[Counted]:
    guard = semel.Guard(url, tenant=None, maintenance=None, **options)
    app, found = guard.asgi(pay), list[Counted]()
    for number in range(WARM):
        for _ in range(2):
            await ask(app, f"a-key-of-one-length-{number:04}")
    steps = Steps()
    for way in ("fresh", "replay"):
        for counter, key in (
            (meter, "a-key-of-one-length-call"),
            (steps, "a-key-of-one-length-step"),
        ):
            with counter.counting():
                assert await ask(app, key) == 201
                await asyncio.sleep(0)  # the handler's task ends after its answer is sent
        found.append(_told(store, way, meter, steps))
    await guard.aclose()
    return found


def _told(store: str, way: str, meter: Meter, steps: Steps) -> Counted:
    calls = meter.calls
    files = {file for file, _ in calls}
    most = tuple((f"{file} {name}", count) for (file, name), count in calls.most_common(12))
    return Counted(store, way, calls.total(), len(files), meter.made, steps.count, most)


def measured() -> list[Counted]:
    """On the stores that need no server."""
    with tempfile.TemporaryDirectory() as folder:
        return counted("memory", "memory://") + counted("SQLite", f"sqlite:///{folder}/semel.db")


IN_BODY = semel.body("/idempotency_key")
ALL = semel.ietf(
    key_from=("Idempotency-Key", IN_BODY),
    payload_from=semel.body("/amount"),
    refusal=semel.refusals.stripe,
    enforce="shadow",
)
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "all of them, on another route": {"routes": [semel.Route("POST", "/other", ALL)]},
    "publish, refusal": {"publish": True, "refusal": semel.refusals.stripe},
    "key_from: two headers": {"key_from": ("Idempotency-Key", "X-Key")},
    "key_from: a header or the body": {"key_from": ("Idempotency-Key", IN_BODY)},
    "payload_from": {"policy": semel.ietf(payload_from=semel.body("/amount"))},
    "enforce=shadow": {"enforce": "shadow"},
}
"""What may be asked for beside the usual, and must cost nothing where it is not."""


def compared() -> list[tuple[str, Counted]]:
    """The same request by guards with other options, on the memory store."""
    return [
        (name, each)
        for name, options in OPTIONS.items()
        for each in counted("memory", "memory://", **options)
    ]


def _print_compared() -> None:
    print("option                           way     calls  steps  ratio")
    usual: dict[str, int] = {}
    for name, each in compared():
        usual.setdefault(each.way, each.steps)
        ratio = each.steps / usual[each.way]
        print(f"{name:<32} {each.way:<6} {each.calls:>6} {each.steps:>6} {ratio:>6.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    said = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    said.add_argument("--most", action="store_true", help="the functions that are called most")
    said.add_argument("--json", action="store_true", help="for programs")
    said.add_argument("--options", action="store_true", help="what options of a guard cost")
    options = said.parse_args(arguments)
    if options.options:
        _print_compared()
        return 0
    found = measured()
    if options.json:
        print(json.dumps([asdict(each) for each in found]))
        return 0
    print("store    way     calls  modules  made  steps")
    for each in found:
        counts = f"{each.calls:>6} {each.modules:>8} {each.made:>5} {each.steps:>6}"
        print(f"{each.store:<8} {each.way:<6} {counts}")
        for name, count in each.most if options.most else ():
            print(f"         {count:>4}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
