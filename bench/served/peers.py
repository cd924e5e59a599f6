"""The same application with a peer around it: ``BENCH_PEER`` says which, ``BENCH_STORE`` where.

Runs in the peers' own environment (requirements/bench.txt), where semel is not installed. Every
peer is set up as its own documentation shows it.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.served.app import app as bare
from bench.served.app import count, count_one, new_id

STORE = os.environ["BENCH_STORE"]


def idemkit_redis() -> Any:
    from idemkit import IdempotencyMiddleware, RedisBackend

    return IdempotencyMiddleware(bare, backend=RedisBackend.from_url(STORE))


def idemkit_postgres() -> Any:
    from idemkit import IdempotencyMiddleware, PostgresBackend
    from idemkit.backends.postgres import init_pg

    with ThreadPoolExecutor() as apart:  # uvicorn imports this in its event loop
        apart.submit(asyncio.run, init_pg(STORE)).result()
    return IdempotencyMiddleware(bare, backend=PostgresBackend.from_url(STORE))


def fastapi_idempotency() -> Any:
    from fastapi_idempotency import IdempotencyMiddleware, MemoryStore

    return IdempotencyMiddleware(bare, store=MemoryStore())


def asgi_idempotency_header() -> Any:
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import RedisBackend
    from redis.asyncio import Redis

    return IdempotencyHeaderMiddleware(bare, backend=RedisBackend(Redis.from_url(STORE)))


def powertools() -> Any:
    """Guards functions, not requests, and blocks: it is run in Starlette's thread pool.

    Without payload validation: its Redis store keeps no digest of the payload, so that with it
    every replay is refused.
    """
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import (
        RedisCachePersistenceLayer,
    )

    config = IdempotencyConfig(event_key_jmespath="key")
    layer = RedisCachePersistenceLayer(url=STORE)

    @idempotent_function(data_keyword_argument="call", persistence_store=layer, config=config)
    def work(call: dict[str, Any]) -> dict[str, Any]:
        count_one()
        return answer(call["order"])

    async def pay(request: Request) -> JSONResponse:
        call = {"key": request.headers["idempotency-key"], "order": await request.json()}
        return JSONResponse(await run_in_threadpool(work, call=call), 201)

    return routed(pay)


def dbos() -> Any:
    """Guards functions, not requests: the key is the workflow's id."""
    from dbos import DBOS, DBOSConfig, SetWorkflowID

    config: DBOSConfig = {"name": "bench", "system_database_url": STORE, "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.workflow()
    async def work(order: dict[str, Any]) -> dict[str, Any]:
        count_one()
        return answer(order)

    async def pay(request: Request) -> JSONResponse:
        order = await request.json()
        with SetWorkflowID(request.headers["idempotency-key"]):
            return JSONResponse(await work(order), 201)

    return launched(routed(pay), DBOS.launch)


def launched(app: Any, launch: Callable[[], None]) -> Any:
    """``app``, after ``launch`` was called in the server's own event loop."""

    async def start_first(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            launch()
        await app(scope, receive, send)

    return start_first


def answer(order: dict[str, Any]) -> dict[str, Any]:
    return {"id": new_id(), "amount": order["amount"], "status": "captured"}


def routed(pay: Callable[[Request], Any]) -> Starlette:
    return Starlette(
        routes=[
            Route("/payments", pay, methods=["POST"]),
            Route("/executions", count, methods=["GET"]),
        ]
    )


PEERS: dict[str, Callable[[], Any]] = {
    "idemkit-redis": idemkit_redis,
    "idemkit-postgres": idemkit_postgres,
    "fastapi-idempotency": fastapi_idempotency,
    "asgi-idempotency-header": asgi_idempotency_header,
    "powertools": powertools,
    "dbos": dbos,
}

app = PEERS[os.environ["BENCH_PEER"]]()
