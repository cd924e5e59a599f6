"""The console on the store of the demo, as a process: `python -m examples.demo.console STORE`.

An application would mount it with `guard.console(authorize=…)`, behind its own login. The demo has
no people who log in, so it is served as `semel console` does: by an address that works once.
"""

from __future__ import annotations

import sys

import semel
from examples.demo.app import POLICY
from examples.demo.servers import announce, end_with_parent
from semel.console.standalone import Standalone


def main(store: str) -> None:
    """Serve until the demo ends; the address is told with the word that it serves."""
    end_with_parent()
    routes = [semel.Route("POST", "/payments", POLICY)]
    guard = semel.Guard(store, tenant=None, routes=routes, maintenance=None)
    Standalone().serve(guard, None, "you", announce)


if __name__ == "__main__":
    main(sys.argv[1])
