"""The API as a process of its own, under uvicorn: `python -m examples.demo.serve SETTINGS`."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import dataclass

import uvicorn

from examples.demo.app import build
from examples.demo.gateway import Gateway
from examples.demo.servers import announce, bound, end_with_parent
from semel.core.policy import Enforce


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the demo tells its API; travels as JSON on the command line."""

    port: int
    provider: int
    store: str
    guarded: bool
    enforce: Enforce = "full"


class _Server(uvicorn.Server):
    """Says when it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            announce()


def main(settings: ApiSettings) -> None:
    """Serve until the demo ends."""
    end_with_parent()
    gateway = Gateway(settings.provider)
    app = build(settings.store, gateway, guarded=settings.guarded, enforce=settings.enforce)
    config = uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=2)
    _Server(config).run(sockets=[bound(settings.port)])


if __name__ == "__main__":
    main(ApiSettings(**json.loads(sys.argv[1])))
