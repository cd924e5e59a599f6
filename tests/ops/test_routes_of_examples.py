"""An unguarded POST that somebody adds to any of the examples is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

AUDIT = """
import json, sys
from importlib import import_module
from click.testing import CliRunner
from semel.ops.commands import semel

def add_to_starlette(module):
    from starlette.routing import Route
    async def added(request): ...
    module.app.router.routes.append(Route("/added", added, methods=["POST"]))

def add_to_fastapi(module):
    module.app.post("/added")(lambda: None)

def add_to_flask(module):
    module.app.post("/added")(lambda: None)

def add_to_litestar(module):
    from litestar import post
    async def added() -> None: ...
    module.app.register(post("/added")(added))

def add_to_django(module):
    from django.conf import settings
    from django.urls import clear_url_caches, path
    from django.views.decorators.http import require_POST
    import_module(settings.ROOT_URLCONF).urlpatterns.append(path("added", require_POST(print)))
    clear_url_caches()

def audited(target):
    done = CliRunner().invoke(semel, ["routes", target, "--json"])
    found = json.loads(done.stdout)["routes"]
    return done.exit_code, [each["path"] for each in found if not each["covered"]]

came = {}
for name in ("starlette", "fastapi", "flask", "litestar", "django"):
    target = f"examples.{name}.app:" + ("application" if name == "django" else "app")
    before = audited(target)
    globals()[f"add_to_{name}"](import_module(f"examples.{name}.app"))
    came[name] = [before, audited(target)]
print(json.dumps(came))
"""


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """One process for all: what is found before and after."""
    folder = str(tmp_path_factory.mktemp("shop"))
    env = {name: value for name, value in os.environ.items() if name != "SEMEL_STORE"}
    done = subprocess.run(
        [sys.executable, "-c", AUDIT],
        cwd=ROOT,
        env={**env, "SHOP_FOLDER": folder, "DJANGO_SETTINGS_MODULE": "examples.django.settings"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ["starlette", "fastapi", "flask", "litestar", "django"])
def test_an_added_route_is_found(came: dict[str, list[Any]], name: str) -> None:
    before, after = came[name]
    assert before == [0, []]
    assert after == [1, ["/added"]]
