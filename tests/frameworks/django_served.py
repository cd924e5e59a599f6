"""A Django project under a real server: its database is the one that DATABASE names.

POST /rows writes a row in an atomic view, and /slow is leased; both then wait while there is a file
``hold``. Both have a sync and an async form.
"""

import os
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connections, models
from django.http import HttpResponse
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

import semel
from tests.waiting import auntil, until

FOLDER = Path(os.environ["FOLDER"])
_told = conninfo_to_dict(os.environ["DATABASE"])


def outer(get_response: Any) -> Any:
    """A middleware in one colour only, as many are."""

    def middleware(request: Any) -> Any:
        return get_response(request)

    return middleware


settings.configure(
    SECRET_KEY="-",
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _told["dbname"],
            "USER": _told.get("user") or "",
            "HOST": _told.get("host") or "",
            "PORT": _told.get("port") or "",
        }
    },
    INSTALLED_APPS=["semel.frameworks.django"],
    MIDDLEWARE=[
        *([f"{__name__}.outer"] if os.environ.get("OUTER") else []),
        "semel.frameworks.django.SemelMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SEMEL_GUARD=f"{__name__}.guard",
    USE_TZ=True,
)
django.setup()

guard = semel.Guard("django://default", tenant=None)
atomic = guard.route(semel.ietf(mode="atomic"))


class Row(models.Model):
    name: "models.CharField[str, str]" = models.CharField(max_length=100)

    class Meta:
        app_label = "served"


def make_tables() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with connections["default"].schema_editor() as editor:
        editor.create_model(Row)


def happened(request: Any) -> None:
    with (FOLDER / "effects").open("a") as effects:
        effects.write(f"{request.path} {request.headers['idempotency-key']}\n")


def held() -> bool:
    return (FOLDER / "hold").exists()


@atomic
def rows(request: Any) -> HttpResponse:
    Row.objects.create(name=request.headers["idempotency-key"])
    return slow(request)


@atomic
async def arows(request: Any) -> HttpResponse:
    await Row.objects.acreate(name=request.headers["idempotency-key"])
    return await aslow(request)


def slow(request: Any) -> HttpResponse:
    happened(request)
    until(lambda: not held())
    return HttpResponse("done", status=201)


async def aslow(request: Any) -> HttpResponse:
    happened(request)
    await auntil(lambda: not held())
    return HttpResponse("done", status=201)


urlpatterns = [path(view.__name__, view) for view in (rows, arows, slow, aslow)]
application = get_wsgi_application()
asgi = get_asgi_application()

if __name__ == "__main__":
    make_tables()
