"""`semel routes` before and after somebody adds a route to an example and says nothing of keys.

``python -m tests.examples.frameworks.forgotten flask=examples.flask.app:app …`` prints what the
command said, as JSON. A process of its own: the examples read their folder when they are imported.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from click.testing import CliRunner

from semel.cli.routes import routes
from semel.cli.targets import app_at


def flask(app: Any) -> None:
    app.add_url_rule("/forgotten", "forgotten", lambda: "", methods=["POST"])


def fastapi(app: Any) -> None:
    app.add_api_route("/forgotten", lambda: "", methods=["POST"])


def starlette(app: Any) -> None:
    app.add_route("/forgotten", lambda request: None, methods=["POST"])


def litestar(app: Any) -> None:
    from litestar import post

    def forgotten() -> str:
        return ""

    app.register(post("/forgotten", sync_to_thread=False)(forgotten))


def django(app: Any) -> None:
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import clear_url_caches, path

    def forgotten(request: Any) -> HttpResponse:
        return HttpResponse()

    import_module(settings.ROOT_URLCONF).urlpatterns.append(path("forgotten", forgotten))
    clear_url_caches()


ADD: dict[str, Callable[[Any], None]] = {
    "django": django,
    "fastapi": fastapi,
    "flask": flask,
    "litestar": litestar,
    "starlette": starlette,
}


def asked(target: str) -> tuple[int, Any]:
    """The exit code, and the routes by what is said of them."""
    result = CliRunner().invoke(routes, [target, "--json"])
    try:
        return result.exit_code, json.loads(result.stdout)["routes"]
    except ValueError:
        return result.exit_code, result.output


def main(arguments: list[str]) -> None:
    told = {}
    for name, _, target in (argument.partition("=") for argument in arguments):
        before = asked(target)
        ADD[name](app_at(target))
        told[name] = {"before": before, "after": asked(target)}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
