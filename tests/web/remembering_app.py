"""A node that answers retries from memory, in both colours; configured by the environment."""

import os
from datetime import timedelta

import semel
from tests.web.colours import Said, asgi, wsgi
from tests.web.effects import Effects

WINDOW = timedelta(seconds=1)
"""Long beside the few requests that are remembered, short for those who wait for its end. Where a
machine is so slow that it is past before that, what must not be repeated is not."""

guard = semel.Guard(os.environ["SEMEL_TEST_STORE"], tenant=None, migrate=True, replay_cache=WINDOW)
effects = Effects(os.environ["SEMEL_TEST_EFFECTS"])


def handle() -> Said:
    semel.operation().resource(os.environ["SEMEL_TEST_RESOURCE"])
    return Said(effects.happen("-").encode())


app = guard.asgi(asgi(handle))
application = guard.wsgi(wsgi(handle))
