"""Who is asking. It goes around semel: a key belongs to the rider whose token was verified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

import semel

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RIDERS = {"token-of-ada": "ada", "token-of-ben": "ben"}


class Authentication:
    """Leaves the rider's name in the scope; turns strangers away."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        # The worker has no token. It brings the rider that semel stored with the request.
        rider = semel.principal(scope) or self._rider(Request(scope))
        if rider is None:
            return await JSONResponse({"error": "unknown token"}, 401)(scope, receive, send)
        return await self.app({**scope, "rider": rider}, receive, send)

    def _rider(self, request: Request) -> str | None:
        return RIDERS.get(request.headers.get("authorization", "").removeprefix("Bearer "))
