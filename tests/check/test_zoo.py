"""Every wrong server is caught by the probe that names its fault; no right one is flagged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from semel.check import CheckOptions, CheckReport, CheckVerdict, check
from semel.check.profiles import profile
from semel.check.run import PROBES, CheckedOperation
from semel.check.wire import WireRequest
from tests.check.zoo.right import RIGHT
from tests.check.zoo.server import Shop, serving
from tests.check.zoo.wrong import WRONG, IgnoresKeys, Wrong
from tests.servers.ports import free_port

BODY = b'{"amount": 100, "currency": "EUR"}'
PAYMENT = CheckedOperation(
    WireRequest("POST", "/payments", (("Content-Type", "application/json"),), BODY),
    refused_body=b'{"currency": "EUR"}',
    failing=(("X-Fail", "1"),),
    label="POST /payments",
)


def checked(
    kind: type[Shop], only: Sequence[str] = (), *, provider: bool = True, effects: bool = True
) -> CheckReport:
    """What the check says of a server of that kind."""
    port = free_port()
    shop = kind(f"http://127.0.0.1:{port}/charges" if provider else None)
    with serving(shop) as origin:
        stop = f"import urllib.request as u; u.urlopen('{origin}/restart')"
        return check(
            CheckOptions(
                origin,
                [PAYMENT],
                profile=_profile(kind),
                token="alice-0123456789",
                other_token="bob-0123456789",
                provider=f":{port}" if provider else None,
                effects=f"{origin}/effects#$.count" if effects else None,
                restart=f'{sys.executable} -c "{stop}"',
                only=only,
                patience=3.0,
            )
        )


def _profile(kind: type[Shop]):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(profile(kind.profile), required=kind.required)


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_server_is_caught_by_the_probe_that_names_its_fault(kind: type[Wrong]) -> None:
    report = checked(kind, [kind.caught_by])
    (result,) = report.results
    assert result.verdict is CheckVerdict.BROKEN, result.reason
    assert result.evidence


@pytest.mark.parametrize("kind", [k for k in WRONG if k.never_holds], ids=lambda k: k.__name__)
@pytest.mark.parametrize("counted", [True, False])
def test_a_probe_that_might_be_taken_in_does_not_hold(kind: type[Wrong], counted: bool) -> None:
    report = checked(kind, kind.never_holds, provider=False, effects=counted)
    held = [each for each in report.results if each.verdict is CheckVerdict.HOLDS]
    assert [f"{each.name}: {each.reason}" for each in held] == []


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_no_right_server_is_flagged(kind: type[Shop]) -> None:
    report = checked(kind)
    assert [f"{each.name}: {each.reason}" for each in report.broken] == []
    held = {each.name for each in report.results if each.verdict is CheckVerdict.HOLDS}
    assert {"effect.once", "race.twenty", "hangup.after", "hangup.middle", "tenant.own"} <= held


def test_every_probe_catches_a_wrong_server() -> None:
    assert {kind.caught_by for kind in WRONG} == set(PROBES)


def test_a_test_of_ones_own_checks_a_running_api(semel_check: Callable[..., CheckReport]) -> None:
    only = ["mismatch.body", "replay.equal"]
    body = {"amount": 100, "currency": "EUR"}
    with serving(Shop()) as origin:
        report = semel_check(f"{origin}/payments", body, token="alice", only=only)
    assert not report.broken
    assert report.count(CheckVerdict.HOLDS) == 2
    with serving(IgnoresKeys()) as origin:
        report = semel_check(f"{origin}/payments", body, token="alice", only=only)
    assert [each.name for each in report.broken] == ["replay.equal", "mismatch.body"]


@pytest.mark.proof
def test_the_whole_matrix() -> None:
    from tests.check.matrix import matrix, row

    for kind in RIGHT:
        assert "X" not in row(kind).values()
    for line in matrix():
        print(line)


def test_without_an_oracle_nothing_that_lies_in_effects_holds() -> None:
    with serving(Shop()) as origin:
        report = check(CheckOptions(origin, [PAYMENT], profile=_profile(Shop), token="alice"))
    verdicts = {each.name: each.verdict for each in report.results}
    for name in ("effect.once", "race.twenty", "hangup.after", "hangup.middle", "flight.same"):
        assert verdicts[name] is CheckVerdict.NOT_OBSERVABLE
