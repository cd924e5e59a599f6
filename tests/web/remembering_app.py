"""A node that answers retries from memory, in both colours; configured by the environment."""

import os
from datetime import timedelta

import semel
from tests.web.colours import Said, asgi, wsgi
from tests.web.effects import Effects

WINDOW = timedelta(seconds=3)

guard = semel.Guard(os.environ["SEMEL_TEST_STORE"], tenant=None, migrate=True, replay_cache=WINDOW)
effects = Effects(os.environ["SEMEL_TEST_EFFECTS"])


def handle() -> Said:
    semel.current().resource(os.environ["SEMEL_TEST_RESOURCE"])
    return Said(effects.happen("-").encode())


app = guard.asgi(asgi(handle))
application = guard.wsgi(wsgi(handle))
