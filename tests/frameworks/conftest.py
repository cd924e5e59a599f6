"""The fixtures of tests/web, for the adapters of frameworks."""

from tests.web.conftest import colour, drive, effects, guard, make_guard, runner, serve

__all__ = ["colour", "drive", "effects", "guard", "make_guard", "runner", "serve"]
