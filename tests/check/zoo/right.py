"""Right servers, in other styles: none of them may be flagged."""

from __future__ import annotations

import threading
from typing import ClassVar

from tests.check.zoo.server import Got, Kept, Said, Shop
from tests.check.zoo.wrong import declaring


class LikeTheDraft(Shop):
    """400, 409, 422; and it says so."""

    declares = declaring()


class LikeStripe(Shop):
    """A mismatch is a 400, failures are kept, keys are optional."""

    mismatch: ClassVar = 400
    profile: ClassVar = "stripe"
    required: ClassVar = False

    def keeps(self, said: Said) -> bool:
        return True


class Accepting(Shop):
    """A duplicate of a running request is told to come back."""

    in_flight: ClassVar = 202
    profile: ClassVar = "semel-accepted"


class Waiting(Shop):
    """A duplicate of a running request waits for its answer."""

    profile: ClassVar = "semel-payments"

    def running(self, kept: Kept) -> Said:
        if kept.over.wait(10) and kept.said is not None:
            return self.replay(kept.said)
        return super().running(kept)


class Deferring(Shop):
    """Every request is accepted, and run later."""

    in_flight: ClassVar = 202
    profile: ClassVar = "semel-accepted"

    def run(self, got: Got) -> Said:
        key = self.key(got)
        if not isinstance(key, str) or got.method != "POST":
            return super().run(got)
        name = self.identity(got, key)
        threading.Thread(target=self._later, args=(got, name), daemon=True).start()
        return Said(202, {"status": "pending"}, (("Retry-After", "0"),))

    def _later(self, got: Got, name: object) -> None:
        said = super().run(got)
        with self.lock:
            if self.keeps(said):
                self.done[name] = said
            else:
                self.kept.pop(name, None)

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)
        self.done: dict[object, Said] = {}

    def again(self, got: Got, kept: Kept, seen: object) -> Said:
        key = self.key(got)
        kept.said = self.done.get(self.identity(got, key)) if isinstance(key, str) else None
        return super().again(got, kept, seen)

    def running(self, kept: Kept) -> Said:
        return Said(202, {"status": "pending"}, (("Retry-After", "0"),))


RIGHT = (LikeTheDraft, LikeStripe, Accepting, Waiting, Deferring)
