"""Every Python process of a demo that a test plays reads this first: it is on its PYTHONPATH.

What it does stands in the environment, so that the servers of the demo inherit it:

SEMEL_TEST_ONLY   a folder: `modules` in it names what may be imported besides the standard library
                  and semel, all else is as if it were not installed; who went by that is noted in
                  `obeyed`.
SEMEL_TEST_AMPLE  the demo has this many seconds for all that must come about. What ought to run out
                  does so when it is its turn, at once: the lease of a process that was killed, and
                  the time-out of the first payment whose order begins with SEMEL_TEST_TIMES_OUT,
                  when the provider has charged.
SEMEL_TEST_WATCH  in a roll-out, keys are never enforced: the second API is in shadow as well.
SEMEL_TEST_STAND  the first scene stands still before the provider's answer is released; the API
                  soon waits for it no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = {"semel", "examples", "sitecustomize", "usercustomize"}
MOMENT = 0.05
"""Seconds that are waited for an answer which is kept back."""


class Only(PathFinder):
    """Finds what is allowed, and nothing else."""

    allowed: frozenset[str]

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in cls.allowed:
            return None
        return super().find_spec(fullname, path, target)


def refuse_all_but(folder: Path) -> None:
    Only.allowed = frozenset({*(folder / "modules").read_text().split(), *OURS}).union(
        sys.stdlib_module_names
    )
    sys.meta_path[:] = [
        Only if finder is PathFinder else finder
        for finder in sys.meta_path
        if finder is PathFinder or getattr(finder, "__module__", "") == "_frozen_importlib"
    ]
    with (folder / "obeyed").open("a") as obeyed:
        obeyed.write(f"{os.getpid()}\n")


def give_ample_time(seconds: float) -> None:
    """Before anybody has taken the demo's own times from its modules."""
    import semel
    from examples.demo import app, client, servers

    ample = timedelta(seconds=seconds)
    app.POLICY = semel.payments(
        required=True, probe=None, lease=ample, in_flight="wait", wait=ample
    )
    client._PATIENCE = servers._START_SECONDS = seconds
    if "examples.demo.serve" in sys.orig_argv:
        time_out_when_charged(os.environ["SEMEL_TEST_TIMES_OUT"], seconds)
    else:
        from examples.demo import scene_run

        scene_run._PATIENCE = seconds
        end_leases_of_the_killed()


def time_out_when_charged(orders: str, seconds: float) -> None:
    import time

    from examples.demo import gateway, servers

    gateway.TIMEOUT = MOMENT if "SEMEL_TEST_STAND" in os.environ else seconds
    genuine, timed_out = gateway.Gateway._charge, set[str]()

    def charged(port: int, order: str) -> bool:
        import http.client

        connection = http.client.HTTPConnection(servers.HOST, port, timeout=seconds)
        try:
            connection.request("GET", f"/charges?order={order}")
            return order.encode() in connection.getresponse().read()
        finally:
            connection.close()

    def charge(self: gateway.Gateway, connection: Any, payment: dict[str, Any], key: str) -> Any:
        order = payment["order"]
        if order.startswith(orders) and order not in timed_out:
            timed_out.add(order)
            answer = connection.getresponse

            def too_late() -> Any:
                while not charged(self._port, order):
                    time.sleep(MOMENT)
                connection.sock.settimeout(MOMENT)
                return answer()

            connection.getresponse = too_late
        return genuine(self, connection, payment, key)

    gateway.Gateway._charge = charge  # type: ignore[method-assign]


def end_leases_of_the_killed() -> None:
    import sqlite3
    from contextlib import closing

    from examples.demo import servers

    genuine = servers.Server.kill

    def kill(self: servers.Server) -> None:
        genuine(self)
        with closing(sqlite3.connect(self._log.parent / "semel.db")) as store, store:
            if store.execute("SELECT 1 FROM sqlite_master WHERE name = 'semel_record'").fetchone():
                held = "WHERE state = 2"
                store.execute(f"UPDATE semel_record SET leased_until = 1, due_at = 1 {held}")

    servers.Server.kill = kill  # type: ignore[method-assign]


def stand_still() -> None:
    import threading

    from examples.demo import scene_run

    def for_ever(self: scene_run.DemoSetup, order: str) -> None:
        threading.Event().wait()

    scene_run.DemoSetup.release = for_ever  # type: ignore[method-assign]


def never_enforce() -> None:
    from examples.demo import scene_run, servers

    def in_shadow(self: scene_run.DemoSetup, api: servers.Server) -> None:
        self._start(api, "shadow")

    scene_run.DemoSetup.start_beside = in_shadow  # type: ignore[method-assign]


sys.path.append(str(Path(__file__).parents[3]))  # where `examples` is
if "SEMEL_TEST_ONLY" in os.environ:
    refuse_all_but(Path(os.environ["SEMEL_TEST_ONLY"]))
if "semel" in sys.orig_argv or "examples.demo.serve" in sys.orig_argv:
    if "SEMEL_TEST_AMPLE" in os.environ:
        give_ample_time(float(os.environ["SEMEL_TEST_AMPLE"]))
    if "SEMEL_TEST_WATCH" in os.environ:
        never_enforce()
    if "SEMEL_TEST_STAND" in os.environ and "semel" in sys.orig_argv:
        stand_still()
