"""Whether the store answers: for checks of readiness."""

from __future__ import annotations

import time
from typing import Final

from semel.core.contract import Read
from semel.core.frozen import frozen
from semel.core.model import Identity
from semel.errors import SemelError, StoreUnavailable
from semel.process.breaker import Breaker, Circuit

QUESTION: Final = Read(Identity(b"\0" * 32))
"""No key has this identity: it costs one trip, changes nothing and finds nothing."""


@frozen
class Health:
    """Whether the store answered, and what the breaker makes of it."""

    up: bool
    circuit: Circuit
    """``open``: requests are refused at once."""
    seconds: float
    """How long the answer took."""
    error: str | None = None
    """In a sentence, why there was none."""


class Look:
    """One question to the store, from when it is put."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._asked = time.monotonic()

    def answered(self) -> Health:
        """An answer closes the breaker."""
        self._breaker.succeeded()
        return self._health(None)

    def failed(self, error: SemelError) -> Health:
        """Only a store that gave no answer is out; a schema that is missing is another matter."""
        if isinstance(error, StoreUnavailable):
            self._breaker.failed(self._asked)
        return self._health(str(error) or type(error).__name__)

    def _health(self, error: str | None) -> Health:
        circuit = self._breaker.circuit
        return Health(error is None, circuit, time.monotonic() - self._asked, error)
