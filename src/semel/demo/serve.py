"""The API as a process of its own, under uvicorn: `python -m semel.demo.serve SETTINGS`."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import dataclass

import uvicorn

from semel.demo.app import build
from semel.demo.child import announce, bound, end_with_parent
from semel.demo.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Settings:
    """What the demo tells its API; travels as JSON on the command line."""

    port: int
    provider: int
    store: str
    guarded: bool


class _Server(uvicorn.Server):
    """Says when it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            announce()


def main(settings: Settings) -> None:
    """Serve until the demo ends."""
    end_with_parent()
    app = build(settings.store, Gateway(settings.provider), guarded=settings.guarded)
    config = uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=2)
    _Server(config).run(sockets=[bound(settings.port)])


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))
