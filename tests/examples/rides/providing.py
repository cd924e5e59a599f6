"""The example's provider, with one more switch: ``hold``.

It is for one charge: whoever sent that hears nothing more of it, and it is not made before the
switches are set anew. Then it is late. ``GET /late`` tells how many have come in so.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from examples.rides import provider
from tests.waiting import until


class Counter(provider.Counter):
    late = 0

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        if self.path == "/late":
            self._answer(200, {"late": Counter.late})
        else:
            super().do_GET()

    def _charge(self, key: str, asked: dict[str, Any]) -> None:
        given = self.switches
        held = given.pop("hold", False)
        if held:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            until(lambda: self.switches is not given)
        super()._charge(key, asked)
        Counter.late += held


if __name__ == "__main__":
    provider.Counter = Counter  # type: ignore[misc]
    provider.main()
