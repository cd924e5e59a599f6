"""Django: ``semel.frameworks.django`` is an application for INSTALLED_APPS.

Django is put together by its settings, so these lines are its ``install(app, guard)``::

    INSTALLED_APPS = [..., "semel.frameworks.django"]  # its migrations make semel's tables
    MIDDLEWARE = [
        ...,
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "semel.frameworks.django.SemelMiddleware",  # below whatever authenticates
    ]
    SEMEL_GUARD = "shop.guards.guard"

The files::

    middleware   SemelMiddleware, for settings.MIDDLEWARE, after AuthenticationMiddleware
    decorator    guarded, for views that authenticate by themselves: Django REST framework's
    http         Django's requests as semel reads them, and its responses, taken apart and made
    routes       the view that answers a request, its policy, and all views of a project
    console      console_urls, for the URLconf: the console below a path
    apps         the application: its checks
    migrations   semel's tables
"""

from __future__ import annotations

from semel.errors import ConfigurationError

try:
    import django as _django
except ImportError as missing:
    raise ConfigurationError(
        "semel.frameworks.django needs Django: pip install 'semel[django]'"
    ) from missing

from semel.frameworks.django.console import console_urls
from semel.frameworks.django.decorator import guarded
from semel.frameworks.django.middleware import SemelMiddleware

__all__ = ["SemelMiddleware", "console_urls", "guarded"]

del _django
