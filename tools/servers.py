"""Tries semel under the servers that are installed, and prints a table for the compatibility page.

::

    pip install granian daphne hypercorn waitress uwsgi gevent eventlet    # those you want to try
    python -m tools.servers [name ...]

Each server runs `tools/served_app.py` in two processes, or in threads, over one SQLite file, or
over the store that SERVED_STORE names. A key is
sent twice, by sixteen clients at once, and by a client that hangs up in the middle of the handler.
The handler's effect, a line in a file, must be there once each time, and the server must end within
its time when it is asked to.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 30.0

ASGI, WSGI = "tools.served_app:asgi", "tools.served_app:wsgi"
EVENTLET = """
import sys, eventlet; eventlet.monkey_patch()
from eventlet import wsgi; from tools.served_app import wsgi as app
wsgi.server(eventlet.listen(("127.0.0.1", int(sys.argv[1]))), app)
"""
"""gunicorn has no worker for eventlet any more (27)."""
SERVERS: dict[str, tuple[str, list[str]]] = {
    "uvicorn": ("uvicorn", ["uvicorn", ASGI, "--port", "{port}", "--workers", "2"]),
    "hypercorn": ("hypercorn", ["hypercorn", ASGI, "-b", "127.0.0.1:{port}", "-w", "2"]),
    "granian (ASGI)": (
        "granian",
        ["granian", "--interface", "asgi", "--port", "{port}", "--workers", "2", ASGI],
    ),
    "granian (WSGI)": (
        "granian",
        ["granian", "--interface", "wsgi", "--port", "{port}", "--blocking-threads", "8", WSGI],
    ),
    "daphne": ("daphne", ["daphne", "-b", "127.0.0.1", "-p", "{port}", ASGI]),
    "gunicorn (threads)": (
        "gunicorn",
        ["gunicorn", "-b", "127.0.0.1:{port}", "-w", "2", "--threads", "8", WSGI],
    ),
    "gunicorn (ASGI)": (
        "gunicorn",
        ["gunicorn", "-b", "127.0.0.1:{port}", "-w", "2", "-k", "asgi", ASGI],
    ),
    "gunicorn (gevent)": (
        "gevent",
        ["gunicorn", "-b", "127.0.0.1:{port}", "-w", "2", "-k", "gevent", WSGI],
    ),
    "eventlet.wsgi": ("eventlet", [sys.executable, "-c", EVENTLET, "{port}"]),
    "waitress": (
        "waitress",
        ["waitress-serve", "--listen=127.0.0.1:{port}", "--threads=8", WSGI],
    ),
    "uWSGI": (
        "uwsgi",
        [
            *("uwsgi", "--http-socket", "127.0.0.1:{port}", "--module", WSGI, "--master"),
            *("--processes", "2", "--threads", "8", "--enable-threads", "--lazy-apps"),
            *("--die-on-term", "--need-app", "--pythonpath", str(ROOT)),
        ],
    ),
}
"""By the name that is shown: the package whose version counts, and the command."""


class Trial:
    """One server, in a folder of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.folder = folder
        found = shutil.which(command[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        given = [part.replace("{port}", str(self.port)) for part in command[1:]]
        env = {**os.environ, "SERVED_FOLDER": str(folder), "PYTHONPATH": str(ROOT)}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(found), *given], cwd=ROOT, env=env, stdout=log, stderr=log
            )

    def post(self, path: str, key: str, timeout: float = PATIENCE) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("POST", path, b"{}", {"Idempotency-Key": key})
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.getheader("idempotent-replayed")
        finally:
            connection.close()

    def effects(self, key: str) -> int:
        log = self.folder / "effects"
        return log.read_text().split().count(key) if log.exists() else 0

    def until(self, condition: Callable[[], bool], what: str) -> None:
        over = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > over or self.process.poll() is not None:
                raise AssertionError(f"not {what}: {(self.folder / 'log').read_text()[-400:]}")
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            return self.post("/quick", "first-key-of-this-server", 2)[0] == 201
        except OSError:
            return False

    # ── what is tried ─────────────────────────────────────────────────────────────────────────────

    def sent_twice(self) -> bool:
        key = f"sent-twice-{self.port}"
        came = [self.post("/quick", key) for _ in range(2)]
        return came == [(201, "false"), (201, "true")] and self.effects(key) == 1

    def sent_by_many(self) -> bool:
        key = f"sent-by-many-{self.port}"
        with ThreadPoolExecutor(16) as pool:
            came = {status for status, _ in pool.map(lambda _: self.post("/quick", key), range(16))}
        return came <= {201, 409} and 201 in came and self.effects(key) == 1

    def hung_up(self) -> bool:
        """The client leaves while the handler runs; the handler goes on, and is run once."""
        key = f"hung-up-in-{self.port}"
        with suppress(TimeoutError):
            self.post("/slow", key, timeout=0.5)
        self.until(lambda: self.effects(key) == 1, "begun")
        (self.folder / "go").touch()
        self.until(lambda: self.post("/slow", key) == (201, "true"), "kept")
        return self.effects(key) == 1

    def ends(self) -> bool:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


def tried(command: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(command, Path(name))
        said: list[str] = []
        try:
            trial.until(trial.answers, "up")
            for check in (trial.sent_twice, trial.sent_by_many, trial.hung_up):
                try:
                    said.append("yes" if check() else "NO")
                except (AssertionError, OSError) as error:
                    said.append(f"NO: {error}")
        except AssertionError as error:
            said = [f"NO: {error}"]
        finally:
            said.append("yes" if trial.ends() else "NO")
    return said


def main(names: list[str]) -> None:
    print("| server | version | sent twice | by 16 at once | client hung up | ended by SIGTERM |")
    print("|---|---|---|---|---|---|")
    for name, (package, command) in SERVERS.items():
        if names and name not in names:
            continue
        try:
            found = version(package)
        except PackageNotFoundError:
            print(f"| {name} | not installed |", flush=True)
            continue
        print(f"| {name} | {found} | {' | '.join(tried(command))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
