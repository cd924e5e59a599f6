"""What an application is wrapped in, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def layers(app: Any) -> Iterator[Any]:
    """From the outside in: middleware keeps what it wraps in ``.app``.

    A bound method, such as Flask's ``wsgi_app``, stands for its application.
    """
    for _ in range(32):  # somebody may wrap himself
        if app is None:
            return
        layer: Any = getattr(app, "__self__", app)
        yield layer
        app = getattr(layer, "app", None)


def packages_of(it: object) -> set[str]:
    """The packages that its class and the bases of that come from: a subclass may be anybody's."""
    return {kind.__module__.partition(".")[0] for kind in type(it).__mro__}
