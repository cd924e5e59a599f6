"""Django: ``semel.frameworks.django`` is an application for INSTALLED_APPS.

::

    middleware   Middleware, for settings.MIDDLEWARE, after AuthenticationMiddleware
    decorator    guarded, for views that authenticate by themselves: Django REST framework's
    requests     Django's requests as semel reads them, with their bodies
    responses    Django's responses taken apart and made
    routes       tags of views, found through the URL resolver
    apps         the application: its checks; migrations make semel's tables
"""

from __future__ import annotations

from semel.errors import ConfigurationError

try:
    import django as _django
except ImportError as missing:
    raise ConfigurationError(
        "semel.frameworks.django needs Django: pip install 'semel[django]'"
    ) from missing

from semel.frameworks.django.decorator import guarded
from semel.frameworks.django.middleware import Middleware

__all__ = ["Middleware", "guarded"]

del _django
