"""The guard of the whole project."""

import os

import semel

guard = semel.Guard(
    os.environ.get("SEMEL_STORE", "django://default"),
    tenant=lambda request: request.raw.user.name,
)
