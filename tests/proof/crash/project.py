"""The shop as a Django project: its guard and its views share the database, by `django://`.

Where a store is no database of Django's, or one without transactions, the guard has its own URL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connections, models
from django.db.utils import load_backend
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

import semel
from semel.stores.mysql.settings import parse
from tests.databases import as_mysqlclient
from tests.proof.crash.shop import STREAMED, Shop, answer, pieces

settings.configure(
    SECRET_KEY="-",
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["semel.frameworks.django"],
    MIDDLEWARE=["semel.frameworks.django.SemelMiddleware"],
    ROOT_URLCONF=__name__,
    SEMEL_GUARD=f"{__name__}.guard",
    USE_TZ=True,
    LOGGING_CONFIG=None,
)
django.setup()

guard: semel.Guard
"""Of this process; what the settings name."""


class Booked(models.Model):
    """What is booked twice is two rows: the table itself has no keys."""

    item: models.CharField[str, str] = models.CharField(max_length=80, primary_key=True)
    nonce: models.CharField[str, str] = models.CharField(max_length=80)

    class Meta:
        app_label = "shop"
        db_table = "booked"
        managed = False


class DjangoShop(Shop):
    """Books by Django's models, on Django's own connection."""

    def _book(self, connection: Any, order: str, nonce: str) -> None:
        Booked.objects.using(connection.alias).create(item=order, nonce=nonce)

    async def _abook(self, connection: Any, order: str, nonce: str) -> None:
        await Booked.objects.using(connection.alias).acreate(item=order, nonce=nonce)


def database(store: str) -> str:
    """The same store as a database of the project's, where it can be one."""
    if store.startswith("sqlite"):
        told: dict[str, Any] = {"NAME": store.removeprefix("sqlite:///")}
        told["OPTIONS"] = {"timeout": 20}
    elif store.startswith("postgresql"):
        told = _postgresql(store)
    elif store.startswith("mysql"):
        told = _mysql(store)
    else:
        return store
    handler: Any = connections
    alias = f"shop{len(handler.settings)}"
    handler.settings[alias] = {**handler.settings["default"], **told}
    load_backend(handler.settings[alias]["ENGINE"])  # here, and not in every child
    return f"django://{alias}"


_NAMES: Final = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user"}


def _postgresql(url: str) -> dict[str, Any]:
    told = conninfo_to_dict(url)
    named = {theirs: told.get(ours) or "" for theirs, ours in _NAMES.items()}
    return {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {}, **named}


def _mysql(url: str) -> dict[str, Any]:
    as_mysqlclient()
    at = parse(url, {})
    named = {"NAME": at.database, "USER": at.user, "HOST": at.socket or at.host}
    return {"ENGINE": "django.db.backends.mysql", "OPTIONS": {}, **named}


def application(shop: Shop, colour: str) -> Any:
    """With its view in the colour of the server; ``mdjango``: in a thread below an event loop."""
    view = _aview(shop) if colour == "adjango" else _view(shop)
    globals().update(guard=shop.guard, urlpatterns=[path("<str:route>", view)])
    return get_wsgi_application() if colour == "django" else get_asgi_application()


def _view(shop: Shop) -> Any:
    def order(request: HttpRequest, route: str) -> HttpResponseBase:
        nonce = shop.done(route, request.body.decode())
        return _response(nonce, pieces if route in STREAMED else None)

    return order


def _aview(shop: Shop) -> Any:
    async def order(request: HttpRequest, route: str) -> HttpResponseBase:
        nonce = await shop.adone(route, request.body.decode())
        return _response(nonce, _apieces if route in STREAMED else None)

    return order


def _response(nonce: str | None, flowing: Callable[[bytes], Any] | None) -> HttpResponseBase:
    status, headers, body = answer(nonce)
    lines = {name.decode(): text.decode() for name, text in headers}
    if flowing is None:
        return HttpResponse(body, status=status, headers=lines)
    return StreamingHttpResponse(flowing(body), status=status, headers=lines)


async def _apieces(body: bytes) -> AsyncIterator[bytes]:
    for piece in pieces(body):
        yield piece


urlpatterns: list[Any] = []
