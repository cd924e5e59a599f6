"""Litestar: keys are claimed after guards and dependencies; its OpenAPI document describes them.

A policy stands on the function (`Guard.route`) or in ``opt={"semel": policy}`` of a handler, a
controller, a router or the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from semel.errors import ConfigurationError
from semel.web import endpoint_gate as gate
from semel.web.asgi import check_settings, drain
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.web.endpoint_gate import session, transaction
from semel.web.openapi import describe
from semel.web.pipeline import Pipeline
from semel.web.routes import find_tag, litestar_handler
from semel.web.tags import called_for

try:
    from litestar import Litestar, Request, get
    from litestar import Response as LitestarResponse
    from litestar.config.app import AppConfig
    from litestar.handlers import HTTPRouteHandler
    from litestar.middleware import DefineMiddleware
    from litestar.response.base import ASGIResponse
except ImportError as error:
    raise ImportError(
        "semel.frameworks.litestar needs Litestar: pip install 'semel[litestar]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from semel.guard import Guard

__all__ = ["install", "session", "transaction"]


class LitestarMiddleware(gate.GatedMiddleware):
    """Guards the routes of a Litestar application, behind its router."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note the method: the endpoint is called for it, since the router has decided."""
        token = called_for.set(scope.get("method"))
        try:
            await super().__call__(scope, receive, send)
        finally:
            called_for.reset(token)

    def make_wait(self, scope: Scope) -> bool:
        """False for a mounted application: it has no guards and dependencies of Litestar."""
        handler = litestar_handler(self.app, scope)
        if not hasattr(handler, "has_sync_callable"):
            return False
        if not gate.is_gated(handler.fn):
            handler._fn = gate.gated(
                handler.fn, lambda status: LitestarResponse(None, status_code=status)
            )
            handler.has_sync_callable = False  # it awaits its gate; the function is as it was
        return True


def install(app: AppConfig, guard: Guard) -> AppConfig:
    """Guard an application while Litestar makes it: a function for ``on_app_init``.

    ``Litestar(on_app_init=[partial(install, guard=guard)])``. Litestar builds the middleware of
    its routes once, so an application that is made cannot be guarded any more. The guard is the
    innermost middleware of every route.
    """
    if not isinstance(app, AppConfig):
        raise ConfigurationError(
            "Litestar is guarded while it is made: on_app_init=[partial(install, guard=guard)]"
        )
    if not hasattr(guard, "backend"):
        raise ConfigurationError(f"guard= takes a semel.Guard, not {type(guard).__name__}")

    async def start(app: Litestar) -> None:
        # Litestar's middlewares see neither the lifespan nor all routes.
        guard.stand_around(app)
        await check_settings(guard)
        if app.openapi_config is not None:
            plugin = cast("Any", app.plugins.get("OpenAPIPlugin"))
            describe(plugin.provide_openapi_schema(), app, guard)

    async def stop() -> None:
        await drain(guard)
        await guard.aclose()

    kind = cast("Any", LitestarMiddleware)
    app.middleware.append(DefineMiddleware(kind, guard=guard))
    app.route_handlers.append(_status_handler(guard))
    if guard.contract_at:
        app.route_handlers.append(_contract_handler(guard))
    app.on_startup.append(start)
    app.on_shutdown.append(stop)
    return app


def _contract_handler(guard: Guard) -> HTTPRouteHandler:
    @get(guard.contract_at, include_in_schema=False)
    async def contract(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return guard.contract(request.app)

    return contract


def _status_handler(guard: Guard) -> HTTPRouteHandler:
    @get(guard.status + "/{operation:str}", include_in_schema=False)
    async def status(request: Request[Any, Any, Any]) -> ASGIResponse:
        pipeline = Pipeline(guard, request.app, find_tag)
        state = await gate.status_at(pipeline, cast("Scope", request.scope))
        return ASGIResponse(
            body=state.body,
            status_code=state.status,
            # A list: a header may be there twice.
            headers=[
                (name.decode("latin-1"), text.decode("latin-1")) for name, text in state.headers
            ],
            media_type="application/octet-stream",
        )

    return status
