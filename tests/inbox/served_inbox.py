"""An inbox as an application serves it, under ASGI and WSGI servers."""

from __future__ import annotations

import os
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

import semel
from semel.core.unknown.evidence import Absent, Happened
from semel.inbox.inbox import Inbox, ProviderEvent

SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS1iYW5rLWFuZC1zaG9w"

guard = semel.Guard(os.environ.get("SHOP_STORE", "memory://"), tenant=None)


def read(event: ProviderEvent) -> Any:
    """The bank's events: what happened to the payment whose identity we sent along."""
    said = event.json()
    if said["type"] == "payment.succeeded":
        body = said["id"].encode()
        return said["identity"], Happened(semel.Response(201, (), body), said["id"])
    if said["type"] == "payment.voided":
        return said["identity"], Absent(final=True)
    return None


bank = Inbox(guard, "bank", SECRET, read, max_body=4096)
app = Starlette(routes=[Mount("/webhooks/bank", bank.asgi)])
application = bank.wsgi
