"""Right servers, in other styles: none of them may be flagged."""

from __future__ import annotations

import itertools
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
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


class TakingEffectTwice(Shop):
    """One request authorises and captures: two effects, two calls of the provider."""

    def take_effect(self) -> None:
        super().take_effect()
        super().take_effect()


class TellingEachRequest(Shop):
    """Every answer, a repeated one too, has an id of its HTTP request in its body."""

    def answer(self, got: Got) -> Said:
        said = super().answer(got)
        if got.method != "POST":
            return said
        return replace(said, document={**said.document, "request": str(uuid.uuid4())})


class WritingAnew(Shop):
    """Keeps values, and writes them in another order."""

    def replay(self, said: Said) -> Said:
        made = super().replay(said)
        return replace(made, document=dict(reversed(made.document.items())))


class SettingALocale(Shop):
    """Every answer sets the same cookie: nothing of the first one's is repeated."""

    def answer(self, got: Got) -> Said:
        return super().answer(got).plus(("Set-Cookie", "locale=en"))


class NamingADate(Shop):
    """``Retry-After`` may be a date."""

    def running(self, kept: Kept) -> Said:
        soon = format_datetime(datetime.now(UTC) + timedelta(seconds=1), usegmt=True)
        return Said(409, {"error": "in flight"}, (("Retry-After", soon),))


class LimitingTheRate(Shop):
    """Now and then a request is refused before its key is looked at."""

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)
        self.asked = itertools.count(1)

    def guarded(self, got: Got) -> Said:
        if next(self.asked) % 4 == 0:
            return Said(429, {"error": "too many"}, (("Retry-After", "0"),))
        return super().guarded(got)


class WaitingForEver(Shop):
    """A duplicate waits however long it takes."""

    profile: ClassVar = "semel-payments"

    def running(self, kept: Kept) -> Said:
        kept.over.wait()
        return super().running(kept) if kept.said is None else self.replay(kept.said)


class NamingAJob(Shop):
    """Every request is answered with 202 and when to look at its job; no other answer comes."""

    profile: ClassVar = "semel-ietf"

    def run(self, got: Got) -> Said:
        said = super().run(got)
        if said.status != 201:
            return said
        return replace(said, status=202).plus(("Retry-After", "30"))


RIGHT = (
    *(LikeTheDraft, LikeStripe, Accepting, Waiting, Deferring, TakingEffectTwice),
    *(TellingEachRequest, SettingALocale, NamingADate, LimitingTheRate, WaitingForEver),
    *(NamingAJob, WritingAnew),
)
