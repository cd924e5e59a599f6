"""Another store under a guard that was made already."""

from __future__ import annotations

from typing import Any

import semel


def put_backend(guard: semel.Guard, backend: Any) -> None:
    """Whoever asks the guard's store asks ``backend``: exchanges, threads and forked children."""
    guard.backend = backend
    guard.runtime = guard.new_runtime()
