"""Right servers, in other styles: none of them may be flagged."""

from __future__ import annotations

from typing import ClassVar

from tests.check.zoo.server import Kept, Said, Shop


class LikeTheDraft(Shop):
    """400, 409, 422."""


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


RIGHT = (LikeTheDraft, LikeStripe, Accepting, Waiting)
