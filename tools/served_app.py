"""The application of `tools/servers.py`: one for ASGI, one for WSGI, with an effect and a gate."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
from flask import Flask, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel.frameworks.flask import install

FOLDER = Path(os.environ.get("SERVED_FOLDER", "."))
guard = semel.Guard(
    os.environ.get("SERVED_STORE", f"sqlite:///{FOLDER}/semel.db"),
    tenant=None,
    policy=semel.payments(required=True, probe=None),
    migrate=True,
)
GUARDED = "SERVED_UNGUARDED" not in os.environ
"""Without a guard every trial must fail: the control."""


def effect(key: str) -> None:
    log = os.open(FOLDER / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, f"{key}\n".encode())
    os.close(log)


async def quick(request: Request) -> JSONResponse:
    effect(request.headers["idempotency-key"])
    return JSONResponse({"done": True}, 201)


async def slow(request: Request) -> JSONResponse:
    effect(request.headers["idempotency-key"])
    while not (FOLDER / "go").exists():  # noqa: ASYNC110 - another process opens the gate
        await anyio.sleep(0.02)
    return JSONResponse({"done": True}, 201)


routes = [Route("/quick", quick, methods=["POST"]), Route("/slow", slow, methods=["POST"])]
plain = Starlette(routes=routes)
asgi = guard.asgi(plain) if GUARDED else plain

wsgi = Flask(__name__)
if GUARDED:
    install(wsgi, guard)


@wsgi.post("/quick")
def quick_view() -> tuple[dict[str, bool], int]:
    effect(request.headers["Idempotency-Key"])
    return {"done": True}, 201


@wsgi.post("/slow")
def slow_view() -> tuple[dict[str, bool], int]:
    effect(request.headers["Idempotency-Key"])
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    return {"done": True}, 201
