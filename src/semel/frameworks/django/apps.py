"""The Django application and its system checks."""

from __future__ import annotations

from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

_MIDDLEWARE: Final = "semel.frameworks.django.SemelMiddleware"
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
    """E001: a key would be claimed before its caller is authenticated."""
    order = [name for name in settings.MIDDLEWARE if name in (_MIDDLEWARE, _AUTHENTICATION)]
    if _AUTHENTICATION not in order or order[0] != _MIDDLEWARE:
        return []
    return [
        checks.Error(
            f"{_MIDDLEWARE} comes before {_AUTHENTICATION}: keys would be claimed for nobody.",
            hint="Put it below AuthenticationMiddleware in MIDDLEWARE.",
            id="semel.E001",
        )
    ]


def check_views(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """W002 and W003: tagged views that no key protects."""
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
