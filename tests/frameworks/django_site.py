"""A Django project in this process: its settings, a model, and a handler of either colour."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db import connections, models
from django.test import override_settings
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

import semel
from semel.stores.mysql.settings import parse
from tests.databases import as_mysqlclient
from tests.web.drive import AsgiDriver, Driver, WsgiDriver

_FOLDER = tempfile.TemporaryDirectory(prefix="semel-")
GUARD = "semel.frameworks.django.SemelMiddleware"

guard: semel.Guard
"""What SEMEL_GUARD names: that of the test."""

if not settings.configured:
    settings.configure(
        SECRET_KEY="-",
        ALLOWED_HOSTS=["*"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": Path(_FOLDER.name) / "site.db",
            }
        },
        INSTALLED_APPS=["rest_framework", "semel.frameworks.django"],
        MIDDLEWARE=[GUARD],
        SEMEL_GUARD="tests.frameworks.django_site.guard",
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()


class Row(models.Model):
    """What views write."""

    name: "models.CharField[str, str]" = models.CharField(max_length=100)

    class Meta:
        app_label = "site"


def make_tables(alias: str) -> None:
    """semel's by its migrations, the views' by themselves."""
    call_command("migrate", database=alias, verbosity=0)
    with connections[alias].schema_editor() as editor:
        editor.create_model(Row)
    connections[alias].close()


def add_postgres(url: str, **options: Any) -> None:
    """Another database of the project's, under the alias ``pg``."""
    handler: Any = connections
    told = conninfo_to_dict(url)
    where = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user"}
    handler.settings["pg"] = {
        **handler.settings["default"],
        "ENGINE": "django.db.backends.postgresql",
        "OPTIONS": {},
        **{theirs: told.get(ours) or "" for theirs, ours in where.items()},
        **options,
    }
    if hasattr(handler._connections, "pg"):
        del handler["pg"]
    make_tables("pg")


def add_mysql(url: str, **options: Any) -> None:
    """The same on MariaDB, under the alias ``my``."""
    as_mysqlclient()
    handler: Any = connections
    at = parse(url, {})
    handler.settings["my"] = {
        **handler.settings["default"],
        "ENGINE": "django.db.backends.mysql",
        "OPTIONS": {},
        "NAME": at.database,
        "USER": at.user,
        "PASSWORD": "",
        "HOST": at.socket or at.host,
        "PORT": "" if at.socket else str(at.port),
        **options,
    }
    if hasattr(handler._connections, "my"):
        del handler["my"]
    make_tables("my")


class Urls:
    """A URLconf made of views by their paths."""

    def __init__(self, views: Mapping[str, Any]) -> None:
        self.urlpatterns = [path(where, view) for where, view in views.items()]


class Site:
    """Views by their paths, behind a guard; to be closed."""

    def __init__(self, guarding: semel.Guard, views: Mapping[str, Any], **options: Any) -> None:
        globals()["guard"] = guarding
        self._settings = override_settings(ROOT_URLCONF=Urls(views), **options)
        self._settings.enable()

    def driver(self, colour: str, runner: asyncio.Runner) -> Driver:
        if colour == "asgi":
            app: Any = get_asgi_application()
            return AsgiDriver(app, runner)
        return WsgiDriver(get_wsgi_application(), strict=False)

    def close(self) -> None:
        self._settings.disable()
        for wrapper in connections.all(initialized_only=True):
            wrapper.close()
