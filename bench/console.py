"""``python -m bench.console``: how long the pages of the console take, and whom they disturb.

Every screen is asked for as a viewer, through the console's ASGI application, in a store of
``--records``, of which so many are ``--unknown`` or ``--in-flight``, with so many ``--dead``
effects and so on. Lists are asked for with filters, on later pages, and with the filter that finds
least. Each time by a new console, which has read nothing yet: what a console remembers for some
seconds is read anew each time. The table has the median and the slowest of ``--rounds`` in
milliseconds; then the work, which is the CPU time that the page took here and in the database: on a
machine that is busy with other things only that says something.

With ``--load``: fresh keys for an application under one worker, with its console mounted in it, in
turns alone, beside ``--people`` who have a page open, and beside as many who click. With
``--apart`` that console is a process of its own on the same store. The table has throughput, p99
and CPU time per request beside the people as ratios to those alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass, field, fields
from typing import Final

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount, Route

import semel
from bench import visitors
from bench.filling import APPLICATION, FILLED, RARE, ROUTES, Amounts, identity
from bench.measure import cpu_seconds
from bench.served.app import pay
from bench.stage import Place
from semel.console import ConsoleUser, Role
from semel.core.records import Request

BUDGET: Final = 200.0
"""Milliseconds of work."""
MOUNT: Final = "/ops"


def viewer(request: Request) -> ConsoleUser:
    return ConsoleUser("ada", [Role.VIEWER])


@dataclass
class Asked:
    """One page, and how long it took, each time."""

    title: str
    path: str
    work: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    store: list[float] = field(default_factory=list)
    size: int = 0

    def row(self) -> str:
        figures = (
            *(statistics.median(self.wall), max(self.wall)),
            *(statistics.median(self.work), max(self.work)),
            *(statistics.median(self.cpu), statistics.median(self.store)),
        )
        late = " !" if figures[2] > BUDGET else ""
        shown = " | ".join(f"{each:.0f}" for each in figures)
        return f"| {self.title} | {shown} | {self.size / 1000:.0f} |{late}"


def pages(amounts: Amounts) -> list[Asked]:
    """Every screen of `semel.console.routes`, as people ask for it."""
    doubtful, completed = identity(5).hex(), identity(28).hex()
    week, often = "older=1d", "tenant=tenant 7"
    return [
        Asked("overview", ""),
        Asked("unknown", "unknown"),
        Asked("unknown, one route", f"unknown?route={ROUTES[5]}"),
        Asked("decide", f"unknown/{doubtful}"),
        Asked("dead letters", "outbox"),
        Asked("dead letters, nothing fits", "outbox?error=never seen"),
        Asked("effects that wait", "outbox?state=waiting"),
        Asked("effects that were delivered", "outbox?state=delivered"),
        Asked("delivered, nothing fits", "outbox?state=delivered&name=receipt&error=never seen"),
        Asked("in flight", "in-flight"),
        Asked("records", "records"),
        Asked("records, completed", "records?state=completed"),
        Asked("records, unknown", "records?state=unknown"),
        Asked("records, expired", "records?state=expired"),
        Asked("records, one tenant of 500", f"records?{often}1"),
        Asked("records, older than a day", f"records?{week}"),
        Asked("records, one route", f"records?route={ROUTES[5]}"),
        Asked("records, status 5xx", "records?status=5xx"),
        Asked("records, a reason", "records?reason=never seen"),
        Asked("records, a resource", "records?resource=order/0"),
        Asked("records, the rarest tenant", f"records?tenant={RARE}"),
        Asked("one key, completed", f"records/{completed}"),
        Asked("one key, unknown", f"records/{doubtful}"),
        Asked("mismatches", "mismatches"),
        Asked("mismatches, nothing fits", "mismatches?tenant=nobody"),
        Asked("approvals", "approvals"),
        Asked("tenants", "tenants"),
        Asked("routes", "routes"),
        Asked("audit", "audit"),
        Asked("audit, by one person", "audit?by=ada 3"),
        Asked("audit, nothing fits", "audit?by=nobody"),
        Asked("audit, one key", f"audit?identity={completed}"),
        Asked("doctor", "doctor"),
    ]


class Visitor:
    """Asks for pages; each time of a console that has read nothing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._guard = semel.Guard(place.url, tenant=None, name=APPLICATION, maintenance=None)
        endpoints = [Route(each.split()[1], pay, methods=["POST"]) for each in ROUTES]
        self._app = self._guard.asgi(Starlette(routes=endpoints))
        self.answer = httpx.Response(200)

    def look(self, path: str, kind: str = "text/html") -> None:
        console = self._guard.console(authorize=viewer, app=self._app)
        asyncio.run(self._look(Starlette(routes=[Mount(MOUNT, app=console)]), path, kind))
        if self.answer.status_code != 200:
            raise SystemExit(f"{path}: {self.answer.status_code}: {self.answer.text[-800:]}")

    async def _look(self, app: Starlette, path: str, kind: str) -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
            self.answer = await client.get(f"{MOUNT}/{path}", headers={"accept": kind})

    def close(self) -> None:
        self._guard.close()

    def measure(self, asked: Asked) -> None:
        pid = self._place.pid
        store = 0.0 if pid is None else cpu_seconds(pid)
        spent, began = time.process_time(), time.perf_counter()
        self.look(asked.path)
        asked.wall.append(1000 * (time.perf_counter() - began))
        asked.cpu.append(1000 * (time.process_time() - spent))
        asked.store.append(0.0 if pid is None else 1000 * (cpu_seconds(pid) - store))
        asked.work.append(asked.cpu[-1] + asked.store[-1])
        asked.size = len(self.answer.content)

    def later(self, of: str, number: int) -> str:
        """The address of a later page, as the pages before it say."""
        path, after = of, None
        for _ in range(number - 1):
            self.look(path, "application/json")
            after = self.answer.json()["next"]
            path = f"{of}{'&' if '?' in of else '?'}after={after}"
        return path


def measured(place: Place, amounts: Amounts, rounds: int, only: str) -> list[Asked]:
    visitor = Visitor(place)
    asked = [each for each in pages(amounts) if only in each.title]
    if not only:
        asked.append(Asked("records, 21st page", visitor.later("records", 21)))
        asked.append(Asked("delivered, 6th page", visitor.later("outbox?state=delivered", 6)))
    for each in asked:
        visitor.look(each.path)  # warms the database, not the console
    for _ in range(rounds):
        for each in asked:
            visitor.measure(each)
    visitor.close()
    return asked


def report(store: str, asked: list[Asked]) -> None:
    print(f"\n| {store} | median | slowest | work | most work | here | database | kB |")
    print("|---|---|---|---|---|---|---|---|")
    for each in asked:
        print(each.row(), flush=True)


def main() -> None:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("bench.console", description=about)
    for each in fields(Amounts):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=int, default=each.default)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="pages with this in their title")
    parser.add_argument("stores", nargs="*", default=[*FILLED], help=", ".join(FILLED))
    parser.add_argument("--load", action="store_true", help="whom the consoles disturb")
    parser.add_argument("--apart", action="store_true", help="a console in its own process")
    parser.add_argument("--people", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6.0, help="of load, each time")
    given = parser.parse_args()
    amounts = Amounts(**{each.name: getattr(given, each.name) for each in fields(Amounts)})
    if given.load:
        print(visitors.HEAD)
        for name in given.stores:
            load = visitors.Load(given.rounds, given.seconds, given.people, given.apart)
            for found in visitors.disturbed(name, amounts, load):
                print(found.row(), flush=True)
        return
    for name in given.stores:
        with FILLED[name](amounts) as place:
            report(name, measured(place, amounts, given.rounds, given.only))


if __name__ == "__main__":
    main()
