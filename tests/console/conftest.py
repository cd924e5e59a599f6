"""Scenes on every store."""

from tests.scene import quick, scene

__all__ = ["quick", "scene"]
