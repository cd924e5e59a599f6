"""A console mounted into an application, under either kind of server, and somebody who asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from semel.console import Console, ConsoleUser, Role
from semel.core.records import Request

SERVERS = ("asgi", "wsgi")
MOUNT = "/ops/semel"
HOST = "shop.test"
SAME_SITE = {"sec-fetch-site": "same-origin"}


def by_header(request: Request) -> ConsoleUser | None:
    """An ``authorize`` for tests: the role is in a header, "nobody" without one."""
    role = request.headers.get("x-role")
    return None if role is None else ConsoleUser(f"ada the {role}", [role])


class Browser:
    """Sends requests to a console that is mounted at ``MOUNT``; each is a connection of its own."""

    def __init__(
        self, console: Console, server: Literal["asgi", "wsgi"], role: Role | None = Role.VIEWER
    ) -> None:
        self._role = role
        self._asgi = self._wsgi = None
        if server == "asgi":
            self._asgi = Starlette(routes=[Mount(MOUNT, app=console)])
        else:
            self._wsgi = DispatcherMiddleware(_nothing, {MOUNT: console.wsgi})

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **given: Any
    ) -> httpx.Response:
        known = {} if self._role is None else {"x-role": self._role.value}
        sent = {**known, **(headers or {})}
        url = f"http://{HOST}{MOUNT}{path}"
        if self._asgi is not None:
            return asyncio.run(self._aask(method, url, sent, given))
        assert self._wsgi is not None
        transport = httpx.WSGITransport(app=self._wsgi)
        with httpx.Client(transport=transport) as client:
            return client.request(method, url, headers=sent, **given)

    async def _aask(
        self, method: str, url: str, headers: Mapping[str, str], given: Mapping[str, Any]
    ) -> httpx.Response:
        assert self._asgi is not None
        transport = httpx.ASGITransport(app=self._asgi)
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.request(method, url, headers=headers, **given)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.ask("GET", path, {"accept": "text/html", **headers})

    def json(self, path: str) -> Any:
        answer = self.ask("GET", path, {"accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **form: Any) -> httpx.Response:
        return self.send(path, form)

    def send(self, path: str, form: Mapping[str, Any]) -> httpx.Response:
        """Send a form, as a page of the console does."""
        return self.ask("POST", path, {"accept": "text/html", **SAME_SITE}, data=form)


def _nothing(environ: Any, start_response: Any) -> list[bytes]:
    start_response("404 Not Found", [])
    return []
