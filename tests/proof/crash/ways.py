"""The ways in, called colours: semel's own adapters, those of frameworks, and functions."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tests.proof.crash.shop import Shop

COLOURS: Final = ("asgi", "wsgi")
DJANGO: Final = ("django", "adjango", "mdjango")
"""In threads, in an event loop, and views in threads below an event loop."""
FRAMEWORKS: Final = ("fastapi", "flask", *DJANGO)
FUNCTIONS: Final = ("once", "aonce")
"""`guard.once`, and awaited. Their keys are others than those of requests."""
AWAITED: Final = ("asgi", "fastapi", "adjango", "mdjango", "aonce")

_MODULES: Final = {
    "fastapi": ("tests.proof.crash.frameworks", "semel.frameworks.fastapi"),
    "flask": ("tests.proof.crash.frameworks",),
    **dict.fromkeys(DJANGO, ("tests.proof.crash.project", "django.db.models.sql.compiler")),
}


def load(colour: str) -> None:
    """In the zygote: what children of this colour need, beyond what all do."""
    for name in _MODULES.get(colour, ()):
        importlib.import_module(name)


def peers(colours: tuple[str, ...]) -> tuple[str, ...]:
    """By which ways the keys that came in by ``colours`` may come again, and be worked on."""
    if colours[0] in FUNCTIONS:
        return FUNCTIONS
    return tuple(dict.fromkeys((*COLOURS, *colours)))


def way(shop: Shop, colour: str) -> Any:
    """The guarded application; None where functions are called instead."""
    match colour:
        case "asgi":
            return shop.guard.asgi(shop.asgi)
        case "wsgi":
            return shop.guard.wsgi(shop.wsgi)
        case "fastapi" | "flask":
            from tests.proof.crash.frameworks import of_fastapi, of_flask

            return of_flask(shop) if colour == "flask" else of_fastapi(shop)
        case "django" | "adjango" | "mdjango":
            from tests.proof.crash.project import application

            return application(shop, colour)
        case _:
            return None
