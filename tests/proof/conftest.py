"""What the campaigns of kills share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from tests.conftest import note
from tests.proof.crash.grounds import thrown_away
from tests.proof.crash.runs import Runs
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.zygote import Zygote


def _lifetime(fixture_name: str, config: pytest.Config) -> Literal["function", "module"]:
    """In a campaign each test has its own: what another test has loaded is copied by every fork."""
    return "function" if config.option.markexpr == "proof" else "module"


@pytest.fixture(scope=_lifetime)
def zygote() -> Iterator[Zygote]:
    with (
        thrown_away() as folder,
        Zygote("tests.proof.crash.process", {}, folder / "zygote.log") as made,
    ):
        yield made


@pytest.fixture
def runs(zygote: Zygote, request: pytest.FixtureRequest) -> Runs:
    return Runs(zygote, request)


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Verdict]:
    """What all campaigns of the module came to; said in the last lines of the run."""
    whole = Verdict()
    yield whole
    kills, zombies = whole.kills.total(), whole.refused
    if kills or zombies:
        pairs = f", {whole.pairs:,} pairs of places" if whole.pairs else ""
        survived = f"{kills:,} kills survived{pairs}, {zombies:,} zombies refused"
        note(request, f"{survived}: {whole.figures()}", "proof")
