"""The guarded application with its console mounted beside it, as an application does that.

``BENCH_CONSOLE_SHARE``: for what share of the time it makes pages; ``all``: always.
"""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.routing import Mount

from bench.served.guarded import app as guarded
from bench.served.guarded import guard
from semel.console import ConsoleUser, Role
from semel.core.records import Request


async def viewer(request: Request) -> ConsoleUser:
    return ConsoleUser("ada", [Role.VIEWER])


share = os.environ.get("BENCH_CONSOLE_SHARE", "0.1")
console = guard.console(
    authorize=viewer, app=guarded, work_share=None if share == "all" else float(share)
)
app = Starlette(routes=[Mount("/ops", app=console), Mount("/", app=guarded)])
