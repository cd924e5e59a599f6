"""FastAPI: keys are claimed after its dependencies, and told of in its OpenAPI document."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.core.exchange.replay import measured
from semel.log import log
from semel.web.asgi import refuse_second
from semel.web.asgi_types import Scope
from semel.web.gate import StandIn, gated, is_gated
from semel.web.gated import GatedMiddleware, status_at
from semel.web.inventory import COMMITS_LATE, late_commits
from semel.web.openapi import describe
from semel.web.pipeline import Pipeline
from semel.web.tags import find_route, find_tag

try:
    from fastapi import FastAPI, Request
    from fastapi import Response as FastapiResponse
except ImportError as error:
    raise ImportError(
        "guard.fastapi() needs FastAPI: pip install 'semel[fastapi]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from semel.guard import Guard


class FastapiMiddleware(GatedMiddleware):
    """Guards a FastAPI application: dependencies first, then the claim, then the endpoint."""

    def make_wait(self, scope: Scope) -> bool:
        """A plain route of Starlette's has no dependencies: there the claim comes first."""
        dependant: Any = getattr(find_route(self.app, scope), "dependant", None)
        if dependant is None or dependant.call is None:
            return False
        if not is_gated(dependant.call):
            # FastAPI calls whatever stands here, after all dependencies are solved.
            dependant.call = gated(dependant.call, _turned_back)
            warn_of_late_commits(scope["path"], dependant)
        return True


def warn_of_late_commits(path: str, dependant: Any) -> None:
    """Say, once for each route, that an answer is kept before its dependency commits."""
    for name in late_commits(dependant):
        log.warning("semel: %s: %s", path, COMMITS_LATE.format(name))


def _turned_back(status: int) -> FastapiResponse:
    return FastapiResponse(status_code=status)


def protect(app: FastAPI, guard: "Guard", dependencies: Sequence[Any] = ()) -> None:
    """What `Guard.fastapi` does."""
    refuse_second(FastapiMiddleware, app)
    app.add_middleware(FastapiMiddleware, guard=guard)
    pipeline = Pipeline(guard, app, find_tag)

    async def status(request: Request) -> FastapiResponse:
        told = await status_at(pipeline, request.scope)
        response = FastapiResponse(told.body, told.status)
        # These and no others: FastAPI would say the length a second time.
        response.raw_headers = list(measured(told).headers)
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
    """Add keys to an application's OpenAPI document; for one that is mounted in a guarded one."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        made = app.openapi_schema is None
        schema = plain()
        if made:
            describe(schema, app, guard)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


async def transaction() -> Any:
    """A dependency: the connection of the operation that runs, in ``mode="atomic"``."""
    return StandIn("transaction")


async def session() -> Any:
    """A dependency: its SQLAlchemy Session, or AsyncSession in a coroutine."""
    return StandIn("session")
