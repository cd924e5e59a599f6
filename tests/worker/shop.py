"""An application for worker processes: its deliverers note in a log file what reached the provider.

A line is written with O_APPEND in one piece, so that it is there although the writer is killed
right after. What an effect does stands in its payload.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import semel
from semel.core.delivery import Delivery
from tests.waiting import auntil, until

guard = semel.Guard(os.environ.get("SEMEL_TEST_STORE", "memory://"), tenant=None)

FOLDER = Path(os.environ.get("SEMEL_TEST_FOLDER", "."))
TRIES = int(os.environ.get("SEMEL_TEST_TRIES", "5"))

not_a_guard = "a text"


def note(delivery: Delivery, what: str) -> None:
    line = {"what": what, "key": delivery.key, "pid": os.getpid(), "tries": delivery.tries}
    line |= {"order": delivery.order, "payload": delivery.payload}
    log = os.open(FOLDER / "received", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, json.dumps(line).encode() + b"\n")
    finally:
        os.close(log)


@guard.delivers(
    "paid",
    tries=TRIES,
    first_pause=timedelta(milliseconds=5),
    longest_pause=timedelta(milliseconds=50),
)
async def paid(delivery: Delivery) -> str:
    """The provider has it when it is noted; its answer takes a moment."""
    do = delivery.payload["do"]
    if do == "poison":
        note(delivery, "poison")
        raise ValueError("no provider takes this")
    note(delivery, "begun")
    if do == "die" or (do == "die once" and delivery.tries == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    elif do == "wait":
        await auntil((FOLDER / "go").exists)
    elif do in ("pause", "slow"):
        await asyncio.sleep(0.002 if do == "pause" else 0.02)
    note(delivery, "received")
    return f"id of {delivery.key}"


@guard.delivers("blocking", tries=TRIES)
def blocking(delivery: Delivery) -> None:
    note(delivery, "begun")
    until((FOLDER / "go").exists)
    note(delivery, "received")
