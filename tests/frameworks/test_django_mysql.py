"""``django://`` on MariaDB, in a project of its own: keys, effects, and what its tests undo."""

import json
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

from tests.waiting import PATIENCE

PROJECT = """
import json, sys
import pymysql

# Django asks for mysqlclient, which is GPL, by its version; PyMySQL says what it is told to.
pymysql.version_info, pymysql.__version__ = (2, 2, 7, "final", 0), "2.2.7"
pymysql.install_as_MySQLdb()

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="-",
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.mysql", **json.loads(sys.argv[1])}},
    INSTALLED_APPS=["semel.frameworks.django"],
    MIDDLEWARE=["semel.frameworks.django.SemelMiddleware"],
    SEMEL_GUARD="__main__.guard",
    ROOT_URLCONF="__main__",
)
django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.test.utils import setup_test_environment
from django.urls import path

import semel

call_command("migrate", verbosity=0)
guard = semel.Guard("django://default", tenant=None, maintenance=None)
ran = []


def view(request):
    ran.append(1)
    return HttpResponse(len(ran), status=201)


urlpatterns = [path("x", view)]


def send(key):
    headers = {"Idempotency-Key": key}
    reply = Client().post("/x", b"{}", content_type="application/json", headers=headers)
    return [reply.status_code, reply.content.decode(), reply.get("Idempotent-Replayed")]


def effects():
    from semel.core.operations.outbox import BrowseEffects, Shelf

    found = guard.backend.blocking().perform(BrowseEffects(Shelf.WAITING, 9)).effects
    return [effect.name for effect in found]


def enqueue(undone):
    try:
        with transaction.atomic():
            guard.enqueue(connection, "undone" if undone else "mail", {})
            if undone:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass


told = {"sent": [send("a-key-of-a-client-1") for _ in range(2)]}
for undone in (True, False):
    enqueue(undone)
told["effects"] = effects()
setup_test_environment(debug=False)
told["tested"] = [send("a-key-of-a-client-2") for _ in range(2)]
print(json.dumps(told))
guard.close()
"""


def test_keys_hold_and_effects_are_written_with_their_transaction(mariadb_url: str) -> None:
    parts = urlsplit(mariadb_url)
    where = {
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parse_qs(parts.query)["socket"][0],
    }
    command = [sys.executable, "-c", PROJECT, json.dumps(where)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["sent"] == [[201, "1", "false"], [201, "1", "true"]]
    assert told["tested"] == [[201, "2", "false"], [201, "2", "true"]]
    assert told["effects"] == ["mail"]
