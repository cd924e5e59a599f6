"""The guarded application with its console mounted beside it, as an application does that."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Mount

from bench.served.guarded import app as guarded
from bench.served.guarded import guard
from semel.console import ConsoleUser, Role
from semel.core.records import Request


async def viewer(request: Request) -> ConsoleUser:
    return ConsoleUser("ada", [Role.VIEWER])


console = guard.console(authorize=viewer, app=guarded)
app = Starlette(routes=[Mount("/ops", app=console), Mount("/", app=guarded)])
