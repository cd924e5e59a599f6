"""Wrong servers: each has the fault of its name, and the probe that must notice it."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar

from tests.check.zoo.server import LONGEST, Got, Kept, Said, Shop


class Wrong(Shop):
    """``caught_by``: the probe that names the fault."""

    caught_by: ClassVar[str]
    needs_provider: ClassVar = False
    never_holds: ClassVar[tuple[str, ...]] = ()
    """Probes that might be taken in."""


# ── the key ───────────────────────────────────────────────────────────────────────────────────────


class TakesRequestsWithoutKey(Wrong):
    caught_by = "key.missing"

    def key(self, got: Got) -> str | Said | None:
        return super().key(got) if got.headers.get_all("Idempotency-Key") else None


class TakesEmptyKeys(Wrong):
    caught_by = "key.empty"

    def read_key(self, text: str) -> str | Said:
        return super().read_key(text) if text else "(none)"


class TakesBrokenQuotes(Wrong):
    caught_by = "key.malformed"

    def read_key(self, text: str) -> str | Said:
        return super().read_key(text.strip('"'))


class CutsLongKeys(Wrong):
    caught_by = "key.long"

    def read_key(self, text: str) -> str | Said:
        return super().read_key(text[:LONGEST])


class FailsOnLongKeys(Wrong):
    caught_by = "key.long"

    def read_key(self, text: str) -> str | Said:
        return (
            Said(500, {"error": "value too long"})
            if len(text) > LONGEST
            else super().read_key(text)
        )


class TakesTheFirstOfTwoKeys(Wrong):
    caught_by = "key.repeated"

    def key(self, got: Got) -> str | Said | None:
        given = got.headers.get_all("Idempotency-Key") or []
        return self.read_key(given[0]) if given else super().key(got)


class IgnoresCase(Wrong):
    caught_by = "key.case"

    def identity(self, got: Got, key: str) -> object:
        return super().identity(got, key.lower())


class TellsQuotedFromBare(Wrong):
    caught_by = "key.quoted"

    def read_key(self, text: str) -> str | Said:
        found = super().read_key(text)
        return found if isinstance(found, Said) else text


# ── the same request again ────────────────────────────────────────────────────────────────────────


class IgnoresKeys(Wrong):
    """Accepted, not enforced: the commonest of all."""

    caught_by = "replay.equal"

    def guarded(self, got: Got) -> Said:
        key = self.key(got)
        return key if isinstance(key, Said) else self.run(got)


class ReplaysAnotherStatus(Wrong):
    caught_by = "replay.equal"

    def replay(self, said: Said) -> Said:
        return replace(super().replay(said), status=200)


class MarksWhatItRunsAgain(Wrong):
    """A marker without a replay."""

    caught_by = "replay.equal"

    def again(self, got: Got, kept: Kept, seen: object) -> Said:
        return self.run(got).plus(("Idempotent-Replayed", "true"))


class ChargesAgainBehindAKeptAnswer(Wrong):
    caught_by = "effect.once"

    def replay(self, said: Said) -> Said:
        self.take_effect()
        return super().replay(said)


class RunsAgainUnderTheSameId(Wrong):
    """The id is made from the key, so that half of the answer looks kept."""

    caught_by = "effect.once"
    never_holds = ("replay.equal", "effect.once", "contract.keys")

    def guarded(self, got: Got) -> Said:
        key = self.key(got)
        said = key if isinstance(key, Said) else self.run(got)
        if isinstance(key, str) and said.status == 201:
            name = str(uuid.uuid5(uuid.NAMESPACE_URL, key))
            return Said(201, {**said.document, "id": name, "at": said.document["id"]})
        return said


class TellsTimesOnly(Wrong):
    """Keys are ignored, and answers differ now and then only, as a time in seconds does."""

    caught_by = "effect.once"
    never_holds = ("replay.equal", "effect.once", "key.quoted", "contract.keys", "race.twenty")

    def guarded(self, got: Got) -> Said:
        key = self.key(got)
        if isinstance(key, Said):
            return key
        said = self.run(got)
        return Said(said.status, {"created": self.effects // 3}) if said.status == 201 else said


class MarksNothing(Wrong):
    caught_by = "replay.marker"

    def replay(self, said: Said) -> Said:
        return replace(said, headers=tuple(h for h in said.headers if h[0] != "Set-Cookie"))


class MarksTheFirst(Wrong):
    caught_by = "replay.marker"

    def guarded(self, got: Got) -> Said:
        said = super().guarded(got)
        others = tuple(each for each in said.headers if each[0] != "Idempotent-Replayed")
        return replace(said, headers=others).plus(("Idempotent-Replayed", "true"))


class LosesTheSecondLink(Wrong):
    caught_by = "replay.headers"

    def replay(self, said: Said) -> Said:
        made = super().replay(said)
        return replace(made, headers=tuple(dict(reversed(made.headers)).items()))


class KeepsCookies(Wrong):
    caught_by = "replay.cookies"

    def replay(self, said: Said) -> Said:
        return said.plus(("Idempotent-Replayed", "true"))


class ComparesBytes(Wrong):
    caught_by = "replay.reordered"

    def print(self, got: Got) -> object:
        return got.query, got.body


# ── other requests ────────────────────────────────────────────────────────────────────────────────


class IgnoresTheBody(Wrong):
    caught_by = "mismatch.body"

    def print(self, got: Got) -> object:
        return got.query


class RunsAnotherBody(Wrong):
    caught_by = "mismatch.body"

    def identity(self, got: Got, key: str) -> object:
        return super().identity(got, key), got.body


class RefusesWithAnotherStatus(Wrong):
    caught_by = "mismatch.body"
    mismatch = 418


class IgnoresTheQuery(Wrong):
    caught_by = "mismatch.query"

    def print(self, got: Got) -> object:
        return super().print(replace(got, query=""))


class IgnoresThePath(Wrong):
    caught_by = "mismatch.path"

    def identity(self, got: Got, key: str) -> object:
        return got.caller, got.method, key


class IgnoresTheMethod(Wrong):
    caught_by = "mismatch.method"

    def identity(self, got: Got, key: str) -> object:
        return got.caller, got.path, key


class ReplaysToReaders(Wrong):
    caught_by = "safe.get"

    def read(self, got: Got) -> Said:
        key = self.key(got)
        post = replace(got, method="POST")
        kept = self.kept.get(self.identity(post, key)) if isinstance(key, str) else None
        return super().read(got) if kept is None or kept.said is None else self.replay(kept.said)


class AnswersAnotherTenant(Wrong):
    caught_by = "tenant.own"

    def identity(self, got: Got, key: str) -> object:
        return got.method, got.path, key


class NamesAnotherTenantsResource(Wrong):
    """The body is the caller's own; the header is not."""

    caught_by = "tenant.own"

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)
        self.first: dict[str, Said] = {}

    def guarded(self, got: Got) -> Said:
        said = super().guarded(got)
        key = self.key(got)
        if not isinstance(key, str) or said.status != 201:
            return said
        place = self.first.setdefault(key, said).headers[0]
        return replace(said, headers=(place, *said.headers[1:]))


class RefusesAnotherTenant(Wrong):
    """One tenant learns of another one's keys, and can use them up."""

    caught_by = "tenant.own"

    def identity(self, got: Got, key: str) -> object:
        return got.method, got.path, key

    def print(self, got: Got) -> object:
        return got.caller, super().print(got)


# ── at the same time ──────────────────────────────────────────────────────────────────────────────


class LooksThenWrites(Wrong):
    """Check, then act: those who look before anybody has written all run."""

    caught_by = "race.twenty"

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)
        self.turn = threading.Condition()
        self.here = self.looked = 0

    def arrived(self) -> None:
        with self.turn:
            self.here += 1

    def left(self) -> None:
        with self.turn:
            self.here -= 1
            self.turn.notify_all()

    def guarded(self, got: Got) -> Said:
        key = self.key(got)
        if not isinstance(key, str):
            return super().guarded(got)
        name, seen = self.identity(got, key), self.print(got)
        kept = self.kept.get(name)
        with self.turn:  # all that are under way have looked
            self.looked += 1
            self.turn.notify_all()
            self.turn.wait_for(lambda: self.looked >= self.here, timeout=10)
        if kept is not None:
            return self.again(got, kept, seen)
        said = self.run(got)
        self.kept[name] = Kept(seen, said)
        with self.turn:
            self.looked -= 1
        return said.plus(("Idempotent-Replayed", "false"))


class FailsTheLosers(Wrong):
    """The unique index is the only guard, and its error goes out."""

    caught_by = "race.twenty"

    def running(self, kept: Kept) -> Said:
        return Said(500, {"error": "duplicate key value"})

    def run(self, got: Got) -> Said:
        said = super().run(got)
        deadline = threading.Event()
        deadline.wait(0.2)  # the twenty have sent their last byte when the first one runs
        return said


class RunsWhatIsRunning(Wrong):
    caught_by = "flight.same"
    needs_provider = True

    def running(self, kept: Kept) -> Said:
        self.take_effect_elsewhere()
        return Said(409, {"error": "in flight"}, (("Retry-After", "1"),))

    def take_effect_elsewhere(self) -> None:
        threading.Thread(target=self.take_effect, daemon=True).start()
        while self.effects < 2:
            threading.Event().wait(0.01)


class AnswersAsIfItWereDone(Wrong):
    caught_by = "flight.same"
    needs_provider = True
    in_flight = 200


class RunsAnotherBodyMeanwhile(Wrong):
    caught_by = "flight.other"
    needs_provider = True

    def again(self, got: Got, kept: Kept, seen: object) -> Said:
        if kept.said is None and kept.print != seen:
            return Said(200, {"id": "another"})
        return super().again(got, kept, seen)


class NamesNoPause(Wrong):
    caught_by = "flight.pause"
    needs_provider = True

    def running(self, kept: Kept) -> Said:
        return Said(409, {"error": "in flight"})


class NamesAPauseThatIsTooShort(Wrong):
    """The answer is there, but not when the duplicate was told to come back."""

    caught_by = "flight.pause"
    needs_provider = True

    def running(self, kept: Kept) -> Said:
        kept.early = 2
        return Said(409, {"error": "in flight"}, (("Retry-After", "0"),))

    def again(self, got: Got, kept: Kept, seen: object) -> Said:
        if kept.said is not None and kept.early:
            kept.early -= 1
            return Said(409, {"error": "in flight"}, (("Retry-After", "0"),))
        return super().again(got, kept, seen)


class StaysInFlightForEver(Wrong):
    """409 for ever: what was once seen running is never seen done."""

    caught_by = "flight.pause"
    needs_provider = True

    def running(self, kept: Kept) -> Said:
        kept.print = None
        return super().running(kept)

    def again(self, got: Got, kept: Kept, seen: object) -> Said:
        return super().running(kept) if kept.print is None else super().again(got, kept, seen)


# ── clients that leave, servers that start again ──────────────────────────────────────────────────


class FreesTheKeyOnHangUp(Wrong):
    caught_by = "hangup.after"

    def __init__(self, provider: str | None = None) -> None:
        super().__init__(provider)
        self.turn = threading.Semaphore()

    def serve(self, handler: object) -> None:
        with self.turn:  # the next request comes after it is known whether this client has left
            super().serve(handler)  # type: ignore[arg-type]

    def sent(self, got: Got, gone: bool) -> None:
        if gone:
            self.kept.clear()


class HangsAfterHangUp(FreesTheKeyOnHangUp):
    """The record of a client that left is never completed."""

    caught_by = "hangup.after"

    def sent(self, got: Got, gone: bool) -> None:
        for kept in self.kept.values() if gone else ():
            kept.said = None


class RunsHalfARequest(Wrong):
    caught_by = "hangup.middle"

    def incomplete(self, got: Got) -> Said | None:
        return self.guarded(replace(got, body=b'{"amount": 1}'))


class BurnsTheKeyOfHalfARequest(Wrong):
    caught_by = "hangup.middle"

    def incomplete(self, got: Got) -> Said | None:
        key = self.key(got)
        if isinstance(key, str):
            self.kept[self.identity(got, key)] = Kept(self.print(got))
        return None


class ForgetsAfterRestart(Wrong):
    caught_by = "durable.restart"

    def restart(self) -> None:
        self.kept.clear()


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


class RunsRefusedRequestsAgain(Wrong):
    caught_by = "error.client"

    def keeps(self, said: Said) -> bool:
        return said.status < 400


class KeepsFailures(Wrong):
    caught_by = "error.server"

    def keeps(self, said: Said) -> bool:
        return True


class TellsAPastExpiry(Wrong):
    caught_by = "expiry.told"

    def answer(self, got: Got) -> Said:
        return super().answer(got).plus(("Idempotency-Expires", "Thu, 01 Jan 2015 00:00:00 GMT"))


# ── declared and done ─────────────────────────────────────────────────────────────────────────────

PROMISES: dict[str, Any] = {
    "methods": ["POST"],
    "key": {"required": True},
    "lifetime": 86_400,
    "mismatch": {"status": 422},
    "in_flight": {"status": 409, "waits": 0},
    "replay": {"header": "Idempotent-Replayed", "value": "true"},
}


def declaring(**other: Any) -> dict[str, Any]:
    """A contract of the right server, but for what is given."""
    route = {**PROMISES, **other, "method": "POST", "path": "/payments"}
    return {"version": 1, "routes": [route], "default": None}


class DeclaresWhatItIgnores(IgnoresKeys):
    caught_by = "contract.keys"
    declares = declaring()


class DeclaresAndChargesAgain(ChargesAgainBehindAKeptAnswer):
    caught_by = "contract.keys"
    declares = declaring()


class EnforcesWhatItDoesNotDeclare(Wrong):
    caught_by = "contract.keys"
    declares: ClassVar = {"version": 1, "routes": [], "default": None}


class DeclaresKeysOptional(Wrong):
    caught_by = "contract.required"
    declares = declaring(key={"required": False})


class DeclaresAnotherMismatch(Wrong):
    caught_by = "contract.mismatch"
    declares = declaring(mismatch={"status": 409})


class DeclaresAnotherFlight(Wrong):
    caught_by = "contract.flight"
    needs_provider = True
    declares = declaring(in_flight={"status": 202, "waits": 0})


class DeclaresAnotherMarker(Wrong):
    caught_by = "contract.replay"
    declares = declaring(replay={"header": "X-Replayed", "value": "yes"})


class DeclaresALongerLife(Wrong):
    caught_by = "contract.lifetime"
    declares = declaring()

    def answer(self, got: Got) -> Said:
        soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
        return super().answer(got).plus(("Idempotency-Expires", soon))


WRONG: tuple[type[Wrong], ...] = tuple(
    each
    for each in globals().values()
    if isinstance(each, type) and issubclass(each, Wrong) and each is not Wrong
)
