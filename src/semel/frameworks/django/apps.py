"""The application: its migrations make semel's tables, its checks read the settings."""

from __future__ import annotations

from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

_MIDDLEWARE: Final = "semel.frameworks.django.Middleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


class SemelConfig(AppConfig):
    """``semel.frameworks.django`` in INSTALLED_APPS."""

    name = "semel.frameworks.django"
    label = "semel"
    verbose_name = "Idempotency keys"

    def ready(self) -> None:
        checks.register(check_middleware)
        checks.register(check_views)


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


def check_views(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Tagged views that no key protects."""
    from semel.frameworks.django.routes import routes
    from semel.web.inventory import explained, leaves_out

    found: list[checks.CheckMessage] = []
    if not getattr(settings, "ROOT_URLCONF", None):
        return found
    for entry in routes(None):
        policy = entry.policy
        if leaves_out(entry):
            found.append(checks.Warning(f"{explained(entry)}.", id="semel.W002"))
        elif entry.guard is None and policy is not None and entry.method in policy.methods:
            where = f"{entry.method} {entry.path}"
            found.append(
                checks.Warning(
                    f"{where} is tagged by guard.route(), and no guard stands around it.",
                    hint=f"Put {_MIDDLEWARE} into MIDDLEWARE, below AuthenticationMiddleware.",
                    id="semel.W003",
                )
            )
    return found
