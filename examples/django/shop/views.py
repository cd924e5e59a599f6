"""Payments in REST framework; transfers, orders and notes in plain Django."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest, JsonResponse
from django.views import View
from django.views.decorators.http import require_POST
from rest_framework import serializers
from rest_framework.response import Response
from rest_framework.views import APIView

import semel
from examples.django.shop.guards import guard
from examples.django.shop.models import Order
from semel.frameworks.django import guarded


def happened(route: str, caller: str, amount: int) -> None:
    """What cannot be taken back: one line for each time that a view really ran."""
    log = os.open(settings.FOLDER / "effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with os.fdopen(log, "wb", 0) as effects:
        effects.write(f"{route} {caller} {amount}\n".encode())


def amount_of(request: HttpRequest) -> int:
    """From the body, which must say how much."""
    try:
        amount = json.loads(request.body)["amount"]
    except (ValueError, TypeError, KeyError) as error:
        raise BadRequest("amount?") from error
    if not isinstance(amount, int):
        raise BadRequest("amount must be a whole number")
    return amount


class Payment(serializers.Serializer[Any]):
    amount = serializers.IntegerField()
    currency = serializers.CharField(default="EUR")


class Payments(APIView):
    """REST framework authenticates when the view is called: `guarded` claims after that."""

    @guarded(guard, semel.ietf(required=True, key="uuid"))
    def post(self, request: Any) -> Response:
        payment = Payment(data=request.data)
        payment.is_valid(raise_exception=True)
        amount = payment.validated_data["amount"]
        happened("payments", request.user.name, amount)
        match amount:
            case 500:
                raise RuntimeError("broken")
            case 402:
                return Response({"error": "declined"}, 402)
            case 503:
                return Response({"error": "come again"}, 503)
            case 700:
                while not (settings.FOLDER / "release").exists():
                    time.sleep(0.01)
            case _:
                pass
        number = uuid4().hex
        location = {"Location": f"/payments/{number}"}
        return Response({"id": number, **payment.validated_data}, 201, headers=location)

    def get(self, request: Any) -> Response:
        log: Path = settings.FOLDER / "effects.log"
        lines = log.read_text().splitlines() if log.exists() else []
        mine = f"payments {request.user.name} "
        return Response({"count": sum(line.startswith(mine) for line in lines)})


@require_POST
@guard.route(semel.payments(required=True, probe=None))
def transfer(request: Any) -> JsonResponse:
    """The middleware finds the tag through the URL resolver, and claims before the view runs."""
    amount = amount_of(request)
    happened("transfers", request.user.name, amount)
    if amount == 500:
        raise RuntimeError("sent, and then?")
    return JsonResponse({"id": uuid4().hex, "amount": amount}, status=201)


class Orders(View):
    @guard.route(semel.ietf(mode="atomic"))
    def post(self, request: Any) -> JsonResponse:
        """The order and its key are one commit, in Django's own transaction."""
        amount = amount_of(request)
        happened("orders", request.user.name, amount)
        order = Order.objects.create(caller=request.user.name, amount=amount)
        if amount == 500:
            raise RuntimeError("broken: no order, and the key is free again")
        return JsonResponse({"id": order.pk}, status=201)

    def get(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({"count": Order.objects.count()})


@require_POST
@guard.route(semel.ietf())
def note(request: Any) -> JsonResponse:
    amount = amount_of(request)
    happened("notes", request.user.name, amount)
    return JsonResponse({"id": uuid4().hex}, status=201)
