"""Litestar: a plugin that claims keys after guards and dependencies, and tells of them in OpenAPI.

A policy stands on the function (`Guard.route`) or in ``opt={"semel": policy}`` of a handler, a
controller, a router or the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from semel.errors import ConfigurationError
from semel.web.asgi import check_settings, drain
from semel.web.asgi_types import Receive, Scope, Send
from semel.web.gate import StandIn, gated, is_gated
from semel.web.gated import GatedMiddleware, status_at
from semel.web.openapi import describe
from semel.web.pipeline import Pipeline
from semel.web.policy_in_force import called_for
from semel.web.tags import find_tag, litestar_handler

try:
    from litestar import Litestar, Request, get
    from litestar import Response as LitestarResponse
    from litestar.handlers import HTTPRouteHandler
    from litestar.middleware import DefineMiddleware
    from litestar.plugins import InitPlugin
except ImportError as error:
    raise ImportError(
        "semel.frameworks.litestar needs Litestar: pip install 'semel[litestar]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from litestar.config.app import AppConfig

    from semel.guard import Guard


class LitestarMiddleware(GatedMiddleware):
    """Guards the routes of a Litestar application; it stands behind its router."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Behind the router, with nothing between: so this is what the endpoint is called for."""
        token = called_for.set(scope.get("method"))
        try:
            await super().__call__(scope, receive, send)
        finally:
            called_for.reset(token)

    def make_wait(self, scope: Scope) -> bool:
        """An application that is mounted has no guards and dependencies of Litestar's."""
        handler = litestar_handler(self.app, scope)
        if not hasattr(handler, "has_sync_callable"):
            return False
        if not is_gated(handler.fn):
            handler._fn = gated(handler.fn, _turned_back)
            handler.has_sync_callable = False  # it awaits its gate; the function is as it was
        return True


def _turned_back(status: int) -> LitestarResponse[None]:
    return LitestarResponse(None, status_code=status)


class SemelPlugin(InitPlugin):
    """``Litestar(plugins=[SemelPlugin(guard)])``: the innermost middleware of every route."""

    def __init__(self, guard: Guard) -> None:
        if not hasattr(guard, "backend"):
            raise ConfigurationError("SemelPlugin(guard) needs a semel.Guard")
        self.guard = guard

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        kind = cast("Any", LitestarMiddleware)
        app_config.middleware.append(DefineMiddleware(kind, guard=self.guard))
        app_config.route_handlers.append(_status_handler(self.guard))
        app_config.on_startup.append(self._start)
        app_config.on_shutdown.append(self._stop)
        return app_config

    async def _start(self, app: Litestar) -> None:
        """Litestar's middlewares see neither the lifespan nor all routes."""
        self.guard.stand_around(app)
        await check_settings(self.guard)
        if app.openapi_config is not None:
            plugin = cast("Any", app.plugins.get("OpenAPIPlugin"))
            describe(plugin.provide_openapi_schema(), app, self.guard)

    async def _stop(self) -> None:
        await drain(self.guard)
        await self.guard.aclose()


def _status_handler(guard: Guard) -> HTTPRouteHandler:
    @get(guard.status + "/{operation:str}", include_in_schema=False)
    async def status(request: Request[Any, Any, Any]) -> LitestarResponse[bytes]:
        pipeline = Pipeline(guard, request.app, find_tag)
        told = await status_at(pipeline, cast("Scope", request.scope))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told.headers}
        kind = headers.pop("content-type", "application/octet-stream")
        return LitestarResponse(
            told.body, status_code=told.status, headers=headers, media_type=kind
        )

    return status


async def transaction() -> Any:
    """A dependency: the connection of the operation that runs, in ``mode="atomic"``."""
    return StandIn("transaction")


async def session() -> Any:
    """A dependency: its SQLAlchemy Session, or AsyncSession in a coroutine."""
    return StandIn("session")
