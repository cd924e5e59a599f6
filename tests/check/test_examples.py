"""What the check says of the examples, as their READMEs start them: nothing is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.check import CheckOptions, CheckVerdict, check
from semel.check.profiles import profile
from semel.check.run import CheckedOperation
from semel.check.wire import WireRequest
from tests.examples.frameworks.example import ExampleServer, found, start_line
from tests.waiting import PATIENCE

PAYMENT = CheckedOperation(
    WireRequest(
        "POST",
        "/payments",
        (("Content-Type", "application/json"),),
        b'{"amount": 100, "currency": "EUR"}',
    ),
    refused_body=b'{"amount": 402, "currency": "EUR"}',
    label="POST /payments",
)
HOLDS = {
    *("key.missing", "key.empty", "key.repeated", "key.quoted", "replay.equal", "effect.once"),
    *("replay.marker", "replay.headers", "replay.reordered", "mismatch.body", "mismatch.query"),
    *("tenant.own", "race.twenty", "hangup.after", "hangup.middle", "error.client", "expiry.told"),
}


@pytest.mark.parametrize("name", found())
def test_nothing_is_broken_in_this_shop(name: str) -> None:
    with ExampleServer(start_line(name)) as server:
        origin = f"http://127.0.0.1:{server.port}"
        report = check(
            CheckOptions(
                origin,
                [PAYMENT],
                profile=replace(profile("semel-ietf"), required=True),
                token="alice",
                other_token="bob",
                effects=f"{origin}/payments#$.count",
                timeout=PATIENCE,
                patience=PATIENCE,
            )
        )
    assert [f"{each.name}: {each.reason}" for each in report.broken] == []
    held = {each.name for each in report.results if each.verdict is CheckVerdict.HOLDS}
    assert held >= HOLDS
