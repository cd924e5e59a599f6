"""What the README, the tutorial and the guide to deferred requests show is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import page
from tests.docs.story import Aliases, commands, curl, play, serve, without_curl


def test_the_readmes_app_answers_as_the_readme_shows(tmp_path: Path) -> None:
    assert play(page("README.md"), tmp_path) == 2


def test_the_readmes_second_answer_is_marked_as_a_replay_of_the_first() -> None:
    shown = [
        command.shown
        for block in page("README.md").blocks
        for command in commands(block.text)
        if command.line.startswith("curl")
    ]
    first, second = shown
    assert "idempotent-replayed: false" in first
    assert "idempotent-replayed: true" in second
    assert first[-1] == second[-1]


def test_the_readmes_app_is_ten_lines() -> None:
    (app,) = [block for block in page("README.md").blocks if block.title]
    assert len([line for line in app.text.splitlines() if line]) <= 10


def test_the_tutorial_can_be_followed_to_its_end(tmp_path: Path) -> None:
    assert play(page("docs/tutorial/first-api.md"), tmp_path) >= 6


def test_a_deferred_request_is_run_and_told_as_its_guide_shows(tmp_path: Path) -> None:
    assert play(page("docs/howto/deferred.md"), tmp_path) == 3


def test_without_curl_the_same_request_is_made(tmp_path: Path) -> None:
    (app,) = [block for block in page("README.md").blocks if block.title]
    assert app.title is not None
    (tmp_path / app.title).write_text(app.text)
    with serve("shop:app", tmp_path) as server:
        url = f"127.0.0.1:{server.port}/orders?item=tea"
        arguments = ["-i", "-X", "POST", url, "-H", "Idempotency-Key: 5b0e6a9c-order-tea"]
        first, second = curl(arguments, server.port), without_curl(arguments)
    assert first.splitlines()[-1] == second.splitlines()[-1]
    assert "idempotent-replayed: true" in second


@pytest.mark.parametrize(
    ("shown", "came", "agree"),
    [
        ("the same", "the same", True),
        ("one thing", "another", False),
        ("id 0badcafe", "id 12345678", True),
        ("id 0badcafe id 0badcafe", "id 12345678 id 87654321", False),
        ("id 0badcafe id 0ddba115", "id 12345678 id 12345678", False),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 02 Jan 1970 00:00:00 GMT", True),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "soon", False),
    ],
)
def test_ids_on_a_page_stand_for_real_ones(shown: str, came: str, agree: bool) -> None:
    assert Aliases().agree(shown, came) is agree
