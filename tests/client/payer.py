"""A process that pays once: `payer URL JOURNAL ORDER WHEN`. Killed, at WHEN, by its own hand.

WHEN is `before the journal`, `after the journal`, `after the answer` or `never`; killed from
outside, it waits for an answer that does not come. `journal last` is the control: the journal is
written after the request is sent, as it must not be.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import httpx

import semel.client.httpx
from semel.client import CallJournal, JournaledCall
from semel.client.model import CallAnswer, LogicalCall, SendRequest
from semel.core.operations.requests import FlowOperation
from tests.client.quick import QUICK
from tests.waiting import PATIENCE


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(CallJournal):
    """Dies at one of its writes."""

    def __init__(self, path: str, when: str) -> None:
        super().__init__(path)
        self._when = when

    def begin(self, call: LogicalCall) -> LogicalCall | JournaledCall:
        if self._when == "before the journal":
            die()
        begun = super().begin(call)
        if self._when == "after the journal":
            die()
        return begun

    def record_answer(self, call: LogicalCall, answer: CallAnswer) -> None:
        if self._when == "after the answer":
            die()
        super().record_answer(call, answer)


class JournalLast(semel.client.httpx.HttpxClient[httpx.Response]):
    """The mistake that the journal is there to avoid."""

    def _begin(self, call: LogicalCall) -> LogicalCall:
        return call

    def _perform(self, op: FlowOperation[Any]) -> Any:
        reply = super()._perform(op)
        if isinstance(op, SendRequest):
            self.journal.begin(op.call)
        return reply


def main(url: str, path: str, order: str, when: str) -> None:
    kind = JournalLast if when == "journal last" else semel.client.httpx.HttpxClient
    with httpx.Client(trust_env=False, timeout=PATIENCE) as http, Dying(path, when) as journal:
        client = kind(
            http,
            journal=journal,
            budget=QUICK,
            credentials=lambda call: {"Authorization": "Bearer ann's first"},
            keep_headers=["X-Order"],
        )
        how = "" if when.startswith(("before", "after")) else "slow"
        sale = {"order": order, "how": how}
        client.post(url, json=sale, headers={"X-Order": order}, name=order)


if __name__ == "__main__":
    main(*sys.argv[1:])
