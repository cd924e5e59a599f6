"""A page that can be played: files are written, servers started, curl lines run and compared.

A block with ``title=`` is written to that file. In a console block ``uvicorn module:app`` starts
the application (again); a ``curl``, ``semel`` or ``alembic`` line is run, and what the page shows
below it is compared with what came. Ids and dates differ from run to run: each id on the page
stands for one real id, throughout the page.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.pages import Page
from tests.servers import AppServer, uvicorn
from tests.waiting import PATIENCE, until

SERVED = "tests.docs.served:app"

_DATE = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"
_TOKEN = re.compile(rf"({_DATE}|\b[0-9a-f]{{8,}}\b)")


@dataclass(frozen=True)
class Command:
    """One line after a ``$``, and what the page shows as its output."""

    line: str
    shown: list[str]


def commands(text: str) -> Iterator[Command]:
    for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, shown = re.sub(r"\\\n\s*", "", piece).partition("\n")
        yield Command(line.partition(" #")[0].strip(), shown.rstrip("\n").split("\n"))


@dataclass
class Aliases:
    """Which real id an id on the page stands for: always the same, and no two share one."""

    real: dict[str, str] = field(default_factory=dict)

    def agree(self, shown: str, came: str) -> bool:
        theirs, ours = _TOKEN.split(shown), _TOKEN.split(came)
        if theirs[::2] != ours[::2]:
            return False
        return all(map(self._same, theirs[1::2], ours[1::2]))

    def _same(self, shown: str, came: str) -> bool:
        if re.fullmatch(_DATE, shown):
            return re.fullmatch(_DATE, came) is not None
        if shown not in self.real and came in self.real.values():
            return False
        return self.real.setdefault(shown, came) == came


def play(page: Page, folder: Path) -> int:
    """Play a page in a folder of its own; returns how many curl lines were run."""
    aliases, ran = Aliases(), 0
    with ExitStack() as stack:
        server: AppServer | None = None
        for block in page.blocks:
            if block.title:
                (folder / block.title).write_text(block.text, encoding="utf-8")
            for command in commands(block.text) if block.language == "console" else ():
                program, *arguments = shlex.split(command.line)
                if program == "uvicorn":
                    stack.close()
                    server = stack.enter_context(serve(arguments[0], folder))
                elif arguments[:2] == ["shadow", "report"]:
                    # Processes add what they have counted every few seconds.
                    until(partial(_prints, command, arguments, folder))
                elif program in ("semel", "alembic"):
                    assert output(program, arguments, folder) == command.shown, block
                elif program == "curl":
                    assert server is not None, f"{block}: curl before uvicorn"
                    compare(command, curl(moved(arguments, server.port)), aliases)
                    ran += 1
    return ran


def _prints(command: Command, arguments: list[str], folder: Path) -> bool:
    return output("semel", arguments, folder) == command.shown


def output(program: str, arguments: list[str], folder: Path) -> list[str]:
    """What a program prints, in a folder that only the page's own files are in."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("SEMEL_")}
    command = [sys.executable, "-W", "error", "-m", program, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stdout.splitlines() or [""]


def serve(app: str, folder: Path) -> AppServer:
    return uvicorn(SERVED, env={"SEMEL_TEST_DOCS_APP": app, "SEMEL_TEST_DOCS_FOLDER": str(folder)})


def compare(command: Command, came: str, aliases: Aliases) -> None:
    """Status line and body as shown, and every header that is shown."""
    head, _, body = came.replace("\r\n", "\n").partition("\n\n")
    status, *headers = head.split("\n")
    context = f"$ {command.line}\nanswered\n{came}"
    shown = [line for line in command.shown if line and line != "..."]
    # The phrase behind the number differs between versions of Python.
    assert shown[0].split()[:2] == status.split()[:2], context
    lowered = [line.partition(":")[0].lower() + ":" + line.partition(":")[2] for line in headers]
    for line in shown[1:-1]:
        assert any(aliases.agree(line, header) for header in lowered), f"{line!r}: {context}"
    assert aliases.agree(shown[-1], body.rstrip("\n")), f"{shown[-1]!r}: {context}"


def moved(arguments: list[str], port: int) -> list[str]:
    """To where the page's server is here."""
    return [part.replace("localhost:8000", f"127.0.0.1:{port}") for part in arguments]


def curl(arguments: list[str]) -> str:
    """The answer as ``curl -i`` prints it; by ``http.client`` where there is no curl."""
    if shutil.which("curl") is None:
        return without_curl(arguments)
    command = ["curl", "--silent", "--show-error", "--max-time", str(PATIENCE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def without_curl(arguments: list[str]) -> str:
    """The same request. Only the options that the pages use are understood."""
    method, body, headers, url = "GET", None, {}, ""
    rest = iter(arguments)
    for part in rest:
        match part:
            case "-i" | "-s":
                continue
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(":")
                headers[name] = value.strip()
            case "-d":
                body, method = next(rest), "POST"
            case _:
                url = part
    where = urlsplit(url if "//" in url else f"http://{url}")
    connection = http.client.HTTPConnection(where.netloc, timeout=PATIENCE)
    try:
        connection.request(method, f"{where.path}?{where.query}", body, headers)
        return _printed(connection.getresponse())
    finally:
        connection.close()


def _printed(answer: http.client.HTTPResponse) -> str:
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
    lines += [f"{name}: {value}" for name, value in answer.getheaders()]
    return "\n".join(lines) + "\n\n" + answer.read().decode()
