"""The payments API of the demo, written as a user of semel would write it.

The numbered comments are all that semel asks of an application.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from inspect import unwrap
from uuid import uuid4

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import semel
from examples.demo.gateway import Declined, Gateway
from examples.demo.ledger import Charge
from semel.core.policy import Enforce
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send

# (1) What the route promises. It names nobody to ask about unknown outcomes (probe=None), so those
#     wait for a person; the scenes play that person. The lease is 60 s unless said otherwise: the
#     demo does not want to wait that long after it has killed the server.
POLICY = semel.payments(required=True, probe=None, lease=timedelta(seconds=2))

TOKENS = {"secret-of-tern-books": "tern-books", "secret-of-wren-tea": "wren-tea"}
"""The merchants who may use this API, by their token."""


@dataclass(frozen=True, slots=True)
class Payment:
    """What a merchant asks for; the amount in cents."""

    order: str
    amount: int
    currency: str
    card: str

    def __post_init__(self) -> None:
        texts = (self.order, self.currency, self.card)
        if not all(isinstance(text, str) for text in texts) or not isinstance(self.amount, int):
            raise TypeError("order, currency and card are texts, amount is a number")


def build(
    store: str, gateway: Gateway, *, guarded: bool = True, enforce: Enforce = "full"
) -> AsgiApp:
    """The whole application: authentication around semel around the API."""
    # (2) Where records live, and who is asking: the merchant whose token was verified. While keys
    #     are rolled out, enforce="shadow" only watches what they would do.
    guard = semel.Guard(store, tenant=lambda request: request.raw["merchant"], enforce=enforce)

    @guard.route(POLICY)
    async def pay(request: Request) -> Response:
        try:
            payment = Payment(**await request.json())
        except (TypeError, ValueError):
            return JSONResponse({"error": "a payment has order, amount, currency and card"}, 400)
        try:
            charge = await run_in_threadpool(gateway.charge, asdict(payment), downstream_key())
        except Declined:
            return JSONResponse({"error": "card declined", "order": payment.order}, 402)
        return Response(receipt(charge), 201, media_type="application/json")

    endpoint = pay if guarded else unwrap(pay)  # --unguarded: tagged, it would refuse to run
    api = Starlette(
        routes=[Route("/payments", endpoint, methods=["POST"])],
        exception_handlers={semel.OutcomeUnknown: in_doubt, semel.NotExecuted: not_now},
    )
    # (3) The guard goes around the API and inside authentication.
    return Authentication(guard.asgi(api) if guarded else api)


def downstream_key() -> str:
    """(4) The key for the provider's own books: the same on every try, so it can be looked up."""
    try:
        key: str = semel.async_operation().downstream_key("charge")
        return key
    except LookupError:  # --unguarded: every try is a stranger
        return f"unguarded_{uuid4().hex}"


def receipt(charge: Charge) -> bytes:
    """The answer to a payment that was made."""
    document = {
        "order": charge.order,
        "status": "paid",
        "amount": charge.amount,
        "currency": charge.currency,
        "charge": charge.id,
    }
    return json.dumps(document).encode() + b"\n"


async def in_doubt(request: Request, error: Exception) -> Response:
    """(5) The gateway raised OutcomeUnknown: semel has noted it, the answer only has to say so."""
    return JSONResponse({"error": str(error)}, 504)


async def not_now(request: Request, error: Exception) -> Response:
    """The gateway raised NotExecuted: nothing was sent, a retry may run."""
    return JSONResponse({"error": str(error)}, 503)


class Authentication:
    """Lets nobody in whose token it does not know; leaves the merchant's name for the others."""

    def __init__(self, app: AsgiApp) -> None:
        self.app = app
        self._merchants = {_digest(token): merchant for token, merchant in TOKENS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        token = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
        merchant = self._merchants.get(_digest(token))
        if merchant is None:
            refusal = JSONResponse({"error": "unknown token"}, 401)
            return await refusal(scope, receive, send)
        return await self.app({**scope, "merchant": merchant}, receive, send)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
