"""FastAPI: keys are claimed after dependencies; its OpenAPI document describes them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.core.exchange.replay import measured
from semel.core.texts import one_line
from semel.errors import ConfigurationError
from semel.log import log
from semel.web import endpoint_gate as gate
from semel.web.asgi import refuse_second
from semel.web.asgi_exchange import Scope
from semel.web.endpoint_gate import session, transaction
from semel.web.inventory import COMMITS_LATE, late_commits
from semel.web.openapi import describe
from semel.web.pipeline import Pipeline
from semel.web.routes import find_route, find_tag

try:
    from fastapi import FastAPI, Request
    from fastapi import Response as FastapiResponse
    from fastapi.params import Depends
except ImportError as error:
    raise ImportError(
        "guard.fastapi() needs FastAPI: pip install 'semel[fastapi]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from semel.guard import Guard

__all__ = ["document", "install", "session", "transaction"]


class FastapiMiddleware(gate.GatedMiddleware):
    """Guards a FastAPI application: dependencies first, then the claim, then the endpoint."""

    def make_wait(self, scope: Scope) -> bool:
        """False for a plain route of Starlette: it has no dependencies, so it is claimed first."""
        dependant: Any = getattr(find_route(self.app, scope), "dependant", None)
        if dependant is None or dependant.call is None:
            return False
        if not gate.is_gated(dependant.call):
            # FastAPI calls whatever stands here, after all dependencies are solved.
            dependant.call = gate.gated(
                dependant.call, lambda status: FastapiResponse(None, status)
            )
            for name in late_commits(dependant):
                said = COMMITS_LATE.format(name)
                log.warning("semel: %s: %s", one_line(scope["path"]), said)
        return True


def install(app: FastAPI, guard: "Guard", *, dependencies: Sequence[Depends] = ()) -> None:
    """Guard a FastAPI application; ``guard.fastapi(app)`` is the same.

    ``dependencies``: those of the route that tells how accepted requests are doing.
    """
    if not isinstance(app, FastAPI):
        raise ConfigurationError(
            f"guard.fastapi() takes a FastAPI application, not {type(app).__name__}; for others "
            "there are guard.asgi(app), guard.wsgi(app) and semel.frameworks"
        )
    pipeline = Pipeline(guard, app, find_tag)
    refuse_second(FastapiMiddleware, app)
    app.add_middleware(FastapiMiddleware, guard=guard)

    async def status(request: Request) -> FastapiResponse:
        state = await gate.status_at(pipeline, request.scope)
        response = FastapiResponse(state.body, state.status)
        # These and no others: FastAPI would say the length a second time.
        response.raw_headers = list(measured(state).headers)
        return response

    app.add_api_route(
        guard.status + "/{operation}",
        status,
        methods=["GET", "HEAD"],
        dependencies=dependencies,
        include_in_schema=False,
    )
    document(app, guard)


def document(app: FastAPI, guard: "Guard") -> None:
    """Describe keys in the OpenAPI document of an application mounted in a guarded one."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        made = app.openapi_schema is None
        schema = plain()
        if made:
            describe(schema, app, guard)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
