"""A minimal project: one database, for the shop's rows and for semel's records."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))

SECRET_KEY = "an example has no secrets"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "examples.django.shop.urls"
USE_TZ = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        "OPTIONS": {"timeout": 20},
    }
}
INSTALLED_APPS = [
    "rest_framework",
    "semel.frameworks.django",  # its migrations make semel's tables
    "examples.django.shop",
]
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "examples.django.shop.callers.authenticate",
    "semel.frameworks.django.SemelMiddleware",  # below whatever authenticates
]
SEMEL_GUARD = "examples.django.shop.guards.guard"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["examples.django.shop.callers.Bearer"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "UNAUTHENTICATED_USER": None,
}
