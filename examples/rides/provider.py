"""A pretend card provider, as a process of its own: ``python -m examples.rides.provider``.

What it did is in its log, a file that only it writes: one JSON object per line, with the key it was
sent. It charges as often as it is asked, on purpose: a provider that recognises a key would hide a
duplicate. With ``--honours-keys`` it answers the second request with a key as it did the first.

    POST /charges               charge a card: 201 charged, 402 declined, 409 voided before
    GET  /charges/KEY           what became of the charge with this key; 404 when there is none
    POST /charges/KEY/void      the same; when there is none, there never will be
    POST /receipts              mail a receipt; a key that was sent before is not mailed again
    PUT  /switches              misbehave: {"slow": 2.5, "drop": true, "decline": true, "die": true}
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

Entry = dict[str, Any]

ADDRESS: Final = os.environ.get("RIDES_PROVIDER", "http://127.0.0.1:8100")
STATUS: Final = {"charged": 201, "declined": 402, "voided": 409, "mailed": 201, "known": 200}


class Books:
    """The log, and what it says of each key. Survives the process, as books should."""

    def __init__(self, path: Path, *, honours_keys: bool = False) -> None:
        self._honours_keys = honours_keys
        self._lock = threading.Lock()
        self._entries = read(path)
        self._first: dict[str, Entry] = {}
        for entry in self._entries:
            self._first.setdefault(entry["key"], entry)
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def charge(self, key: str, asked: Entry, *, decline: bool) -> Entry:
        with self._lock:
            before = self._first.get(key)
            if before is not None and (before["status"] == "voided" or self._honours_keys):
                return before
            number = f"ch_{len(self._entries) + 1}"
            entry = {"id": number, "ride": asked["ride"], "amount": asked["amount"]}
            return self._write("declined" if decline else "charged", key, entry)

    def void(self, key: str) -> Entry:
        with self._lock:
            return self._first.get(key) or self._write("voided", key, {})

    def mail(self, key: str, asked: Entry) -> Entry:
        with self._lock:
            seen = key in self._first
            entry = {"id": f"mail_{len(self._entries) + 1}", "ride": asked["ride"]}
            return self._write("known" if seen else "mailed", key, entry)

    def find(self, key: str) -> Entry | None:
        return self._first.get(key)

    def _write(self, status: str, key: str, more: Entry) -> Entry:
        entry = {"status": status, "key": key, **more}
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._entries.append(entry)
        self._first.setdefault(key, entry)
        return entry


def read(log: Path) -> list[Entry]:
    """Everything the provider ever did, in order."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class Counter(BaseHTTPRequestHandler):
    """The provider's HTTP face."""

    books: Books
    switches: Entry

    def do_POST(self) -> None:
        asked = self._read()
        key = self.headers.get("idempotency-key", "")
        match self.path.split("/")[1:]:
            case ["charges"]:
                self._charge(key, asked)
            case ["charges", voided, "void"]:
                entry = self.books.void(voided)
                self._answer(200, entry)
            case ["receipts"]:
                entry = self.books.mail(key, asked)
                self._answer(STATUS[entry["status"]], entry)
            case _:
                self._answer(404, {"error": "no such page"})

    def do_GET(self) -> None:
        entry = self.books.find(self.path.removeprefix("/charges/"))
        self._answer(*((404, {"error": "no such charge"}) if entry is None else (200, entry)))

    def do_PUT(self) -> None:
        Counter.switches = self._read()
        self._answer(200, self.switches)

    def _charge(self, key: str, asked: Entry) -> None:
        switches = self.switches
        time.sleep(switches.get("slow", 0))  # before the charge: whoever asks meanwhile finds none
        entry = self.books.charge(key, asked, decline=switches.get("decline", False))
        if switches.get("die"):
            os._exit(1)
        if not switches.get("drop"):
            self._answer(STATUS[entry["status"]], entry)

    def _read(self) -> Entry:
        length = int(self.headers.get("content-length") or 0)
        asked: Entry = json.loads(self.rfile.read(length) or b"{}")
        return asked

    def _answer(self, status: int, document: Entry) -> None:
        body = json.dumps(document).encode() + b"\n"
        with suppress(ConnectionError):  # whoever asked may be gone; what was done is done
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """The log is `Books`."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser(description="A pretend card provider.")
    parser.add_argument("--port", type=int, default=urlsplit(ADDRESS).port)
    parser.add_argument("--log", type=Path, default=Path("provider.jsonl"))
    parser.add_argument("--honours-keys", action="store_true")
    given = parser.parse_args()
    Counter.books = Books(given.log, honours_keys=given.honours_keys)
    Counter.switches = {}
    with suppress(KeyboardInterrupt):
        Server(("127.0.0.1", given.port), Counter).serve_forever()


if __name__ == "__main__":
    main()
