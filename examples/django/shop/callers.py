"""Who asks: for views of Django by a middleware, for those of REST framework by a class of its."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request


@dataclass(frozen=True)
class Caller:
    name: str
    is_authenticated: bool = True


CALLERS = {"Bearer alice": Caller("alice"), "Bearer bob": Caller("bob")}


def authenticate(get_response: Callable[..., Any]) -> Callable[..., HttpResponseBase]:
    """Before any key is looked at: without a caller there is no answer, not even a kept one."""

    def middleware(request: Any) -> HttpResponseBase:
        request.user = caller(request)
        if request.user is None and not request.path.startswith("/payments"):
            return JsonResponse({"error": "who are you?"}, status=401)
        answer: HttpResponseBase = get_response(request)
        return answer

    return middleware


class Bearer(BaseAuthentication):
    """What REST framework's views ask when they are called; keys are claimed after it."""

    def authenticate(self, request: Request) -> tuple[Caller, None] | None:
        found = caller(request)
        return None if found is None else (found, None)

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def caller(request: HttpRequest | Request) -> Caller | None:
    return CALLERS.get(request.headers.get("Authorization", ""))
