"""A plain HTTP client for tests of real servers, and keys for it."""

import http.client
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

from tests import canary
from tests.canary import new_key as new_key
from tests.waiting import PATIENCE, until

BODY = json.dumps({"note": canary.BODY}).encode()


@dataclass(frozen=True)
class Reply:
    """One answer as it came over the wire."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def __post_init__(self) -> None:
        if self.one("content-type") == "application/problem+json":
            canary.look("a problem document", self.body)

    def all(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header.lower() == name]

    def one(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    @property
    def replayed(self) -> bool:
        return self.one("idempotent-replayed") == "true"

    @property
    def problem(self) -> Any:
        assert self.one("content-type") == "application/problem+json", self
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.problem["code"])

    @property
    def final(self) -> bool:
        """Not a request to come again later."""
        return (
            self.one("content-type") != "application/problem+json"
            or not (self.problem["retryable"])
        )


class Client:
    """Sends to one server, on a new connection each time, so that any worker may get it."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc

    def post(
        self,
        path: str,
        key: str | None,
        body: bytes = BODY,
        /,
        **headers: str,
    ) -> Reply:
        connection = http.client.HTTPConnection(self._host, timeout=PATIENCE)
        try:
            connection.request("POST", path, body, _headers(key, headers))
            answer = connection.getresponse()
            return Reply(answer.status, tuple(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def post_and_leave(self, path: str, key: str, **headers: str) -> socket.socket:
        """Send a whole request and return the connection on which nobody reads the answer."""
        host, _, port = self._host.partition(":")
        sock = socket.create_connection((host, int(port)), timeout=PATIENCE)
        lines = [f"POST {path} HTTP/1.1", f"host: {self._host}", f"content-length: {len(BODY)}"]
        lines += [f"{name}: {value}" for name, value in _headers(key, headers).items()]
        sock.sendall("\r\n".join([*lines, "", ""]).encode() + BODY)
        return sock

    def post_half(self, path: str, key: str) -> socket.socket:
        """Send the head of a request and half of its body."""
        host, _, port = self._host.partition(":")
        sock = socket.create_connection((host, int(port)), timeout=PATIENCE)
        lines = [f"POST {path} HTTP/1.1", f"host: {self._host}", f"content-length: {len(BODY)}"]
        lines += [f"{name}: {value}" for name, value in _headers(key, {}).items()]
        sock.sendall("\r\n".join([*lines, "", ""]).encode() + BODY[:5])
        return sock

    def insist(self, path: str, key: str, **headers: str) -> Reply:
        """Send again while the answer says to; what a good client does."""

        def look() -> Reply | None:
            reply = self.post(path, key, **headers)
            return reply if reply.final else None

        found = until(look)
        assert found is not None
        return found

    def at_once(self, count: int, path: str, key: str, **headers: str) -> list[Reply]:
        """The same request from many connections at the same moment."""
        barrier = Barrier(count)

        def one(_: int) -> Reply:
            barrier.wait(PATIENCE)
            return self.post(path, key, **headers)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))


def _headers(key: str | None, more: Mapping[str, str]) -> dict[str, str]:
    headers = {"content-type": "application/json", "x-api-token": canary.TOKEN}
    if key is not None:
        headers["idempotency-key"] = key
    return headers | {name.replace("_", "-"): value for name, value in more.items()}
