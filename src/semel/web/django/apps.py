"""The application: its migrations make semel's tables, its checks read the settings."""

from __future__ import annotations

from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

_MIDDLEWARE: Final = "semel.web.django.Middleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


class SemelConfig(AppConfig):
    """``semel.web.django`` in INSTALLED_APPS."""

    name = "semel.web.django"
    label = "semel"
    verbose_name = "Idempotency keys"

    def ready(self) -> None:
        checks.register(check_middleware)


def check_middleware(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Whoever is to be authenticated must be, before a key is claimed."""
    order = list(settings.MIDDLEWARE)
    if _MIDDLEWARE not in order:
        return []
    if _AUTHENTICATION in order and order.index(_AUTHENTICATION) > order.index(_MIDDLEWARE):
        return [
            checks.Error(
                f"{_MIDDLEWARE} comes before {_AUTHENTICATION}: keys would be claimed for nobody.",
                hint="Put it below AuthenticationMiddleware in MIDDLEWARE.",
                id="semel.E001",
            )
        ]
    return []
