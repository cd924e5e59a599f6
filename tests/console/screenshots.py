"""Pictures of the console for its how-to: `python -m tests.console.screenshots`.

They show the day of a shop (`tests.console.shop`), whose clock is ours: made again, they change
only where the pages do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from semel.core.records import Identity
from tests.console.person import Person, served
from tests.console.shop import Shop, by_name, fill, opened
from tests.servers import chromium

IMAGES = Path(__file__).parents[2] / "docs/howto/operations/images"
WIDE = {"width": 1200, "height": 700}
NARROW = {"width": 390, "height": 700}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as shop:
        fill(shop, 300)
        rule, traces = ["free", "erase"], "https://jaeger.example/search?tag={identity}"
        console = shop.guard.console(authorize=by_name, two_person=rule, trace_url=traces)
        with served(Starlette(routes=[Mount("/ops/semel", app=console)])) as address:
            take(f"{address}/ops/semel", one_in_doubt(shop).hex())


def take(address: str, doubtful: str) -> None:
    with chromium.launched() as browser:
        wide = Person(browser, address, viewport=WIDE)
        for name, path in (
            ("overview", ""),
            ("records", "records"),
            ("one-key", f"records/{doubtful}"),
            ("unknown", "unknown"),
            ("decide", f"unknown/{doubtful}"),
            ("dead-letters", "outbox"),
        ):
            shoot(wide, path, name)
        wide.page.emulate_media(color_scheme="dark")
        shoot(wide, "", "overview-dark")
        shoot(Person(browser, address, viewport=NARROW), f"unknown/{doubtful}", "decide-narrow")


def shoot(person: Person, path: str, name: str) -> None:
    person.open(path).screenshot(path=IMAGES / f"console-{name}.png", animations="disabled")
    if person.complaints:
        raise SystemExit(f"{name}: {person.complaints}")


def one_in_doubt(shop: Shop) -> Identity:
    """The one of which a webhook is on record: it has evidence of every kind."""
    cases = [case for case, _ in shop.operator().list_unknown()]
    return next(each.record.identity for each in cases if each.origin.tenant == "initech")


if __name__ == "__main__":
    main()
