"""What the README, the tutorial and the guide to deferred requests show is what happens."""

from __future__ import annotations

import shlex
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.docs.pages import page
from tests.docs.story import Aliases, commands, curl, play, without_curl


def test_the_readmes_app_answers_as_the_readme_shows(tmp_path: Path) -> None:
    assert play(page("README.md"), tmp_path) == 2


def test_the_page_on_rolling_out_can_be_played(tmp_path: Path) -> None:
    assert play(page("docs/howto/operations/roll-out.md"), tmp_path) == 8


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
    assert play(page("docs/howto/policies/deferred.md"), tmp_path) == 3


class Listener(BaseHTTPRequestHandler):
    """Notes what it was asked, and how."""

    heard: ClassVar[list[tuple[object, ...]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        named = [self.headers.get(name) for name in ("idempotency-key", "content-type")]
        self.heard.append((self.command, self.path.rstrip("?"), *named, body))
        self.send_response(201)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"heard")

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Not on standard error."""


@pytest.mark.parametrize(
    "asked",
    [
        "-X POST localhost:8000/orders?item=tea -H 'Idempotency-Key: 5b0e6a9c-order-tea'",
        "localhost:8000/payments -H 'content-type: application/json' -d '{\"amount\": 4200}'",
    ],
)
def test_without_curl_the_same_request_is_made(asked: str) -> None:
    Listener.heard.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever).start()
        port = server.server_address[1]
        arguments = shlex.split(f"-i {asked}".replace("localhost:8000", f"127.0.0.1:{port}"))
        answers = [curl(arguments), without_curl(arguments)]
        server.shutdown()
    one, other = Listener.heard
    assert one == other
    assert [answer.splitlines()[-1] for answer in answers] == ["heard", "heard"]
    assert all(answer.splitlines()[0].split()[1] == "201" for answer in answers)


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
