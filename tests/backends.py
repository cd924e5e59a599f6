"""Another store under a guard that was made already."""

from __future__ import annotations

from functools import partial
from typing import Any

import semel


def put_backend(guard: semel.Guard, backend: Any) -> None:
    """Whoever asks the guard's store asks ``backend``: exchanges, threads and forked children."""
    given: Any = guard.new_runtime
    _, *others = given.args
    guard.backend = backend
    guard.new_runtime = partial(given.func, backend, *others, **given.keywords)
    guard.runtime = guard.new_runtime()
