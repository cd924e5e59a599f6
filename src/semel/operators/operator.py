"""What an operator does with records: look, ask, settle, give up, evict, erase.

Blocking; the commands of `semel unknown` and `semel dlq` are made of these.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from semel.core import maintenance
from semel.core import operations as ops
from semel.core.frozen import frozen, replace
from semel.core.maintenance import Erasure
from semel.core.policy import Policy
from semel.core.records import Case, Effect, Identity, Micros, OnLapse, Record, State
from semel.core.request import keys
from semel.core.unknown.evidence import Evidence
from semel.core.unknown.probe import Doubt, Inspection, ask_probe, reconcile
from semel.core.unknown.settle_unknown import (
    Passed,
    Settled,
    Settlement,
    Undecided,
    Witness,
    call_in_doubt,
    settle_anew,
    settle_unknown,
)
from semel.errors import ConfigurationError, StoreError
from semel.operators.lists import cases, effects
from semel.runtime.events import INFO, short
from semel.runtime.flow_runner import FlowRunner
from semel.runtime.leases import new_fence
from semel.runtime.replay_cache import outlast
from semel.web.inventory import KnownRoutes
from semel.worker.reconciler import UnknownRoute, doubt_of, emit_reconcile, report_inspection

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.operators.rotation import Rotation

_PAGE: Final = 200
"""Entries of the audit that are read in one step."""
ERASED_PAGE: Final = 500
"""Records that an erasure looks at in one step."""
ERASED_AT_ONCE: Final = 8
"""Writes under way: they wait for the disk together, and leave most connections to requests."""
NOBODY: Final = "nobody can be asked: its route and its call have no probe"


@frozen
class KeyAddress:
    """Where a key was used: tenant, method, path, and the key itself."""

    tenant: str
    method: str
    path: str
    key: str


class Operator:
    """Does an operator's work on a guard's records. ``app``: see `KnownRoutes`."""

    def __init__(self, guard: Guard, app: Any = None) -> None:
        self._guard = guard
        self._routes = KnownRoutes(guard, app)
        self._runner = FlowRunner(guard)
        self._ask = self._runner.perform
        self._has_outbox = guard.backend.capabilities.outbox

    @property
    def guard(self) -> Guard:
        """Whose records they are."""
        return self._guard

    def find(self, what: Identity | KeyAddress) -> ops.Recalled | None:
        """The record with all that is kept of it, by its identity or by where its key was used."""
        for identity in self._identities(what) if isinstance(what, KeyAddress) else (what,):
            found = self._ask(ops.Recall(identity))
            if isinstance(found, ops.Recalled):
                return found
        return None

    def settle(
        self,
        identity: Identity,
        evidence: Evidence,
        *,
        by: str,
        reason: str,
        call: str | None = None,
        seen: str | None = None,
    ) -> Settlement | None:
        """Settle by what ``by`` has found out; None when there is no such record.

        ``call``: the operation's call that it is about. One that has a result is settled anew, if
        nothing has come behind it. ``seen``: the `sighting` that was decided on; where the record
        is another by now, it is left as it is (`Passed`).
        """
        ops.Act(by, reason)  # refuses empty words, which the witness's own would hide
        found = self.find(identity)
        if found is None:
            return None
        if seen not in (None, sighting(found.case.record)):
            return Passed(found.case.record.state, found.now)
        policy = self._routes.policy(found.case.terms)
        render = None if policy is None else policy.render
        witness, fence = Witness("operator", by, reason), new_fence()
        if call is None or call == call_in_doubt(found.case):
            flow = settle_unknown(found.case, found.now, evidence, fence, witness, render)
        else:
            flow = settle_anew(found.case, found.now, call, evidence, fence, witness)
        settlement = self._runner.run(flow)
        if isinstance(settlement, Settled):
            self._emit("settled", by, reason, identity)
            state = settlement.state.value
            emit_reconcile(self._guard, found.case, "settled", INFO, by="operator", state=state)
        return settlement

    def probe_now(self, identity: Identity, *, by: str, reason: str = "") -> Inspection | None:
        """Ask its probe at once, however old it is; a dead letter stays one if nobody can tell.

        Where it settles the record, the audit has the probe, and says who had it asked and why.
        """
        said = by_operator(by, reason or "no reason")
        asker = said.line if reason else said.by
        doubt = self._probed(identity)
        if doubt is None:
            return None
        with self._guard.events.span("probe", identity):
            inspection = self._runner.run(reconcile(doubt, new_fence(), 1.0, asker=asker))
            report_inspection(self._guard, doubt, inspection)
        return inspection

    def look(self, identity: Identity) -> Evidence | Undecided | None:
        """What its probe says, and nothing is decided by it; None when there is no such record.

        The probe is the application's own: this counts as no try, and writes nothing here.
        """
        doubt = self._probed(identity)
        if doubt is None:
            return None
        with self._guard.events.span("probe", identity):
            return self._runner.run(ask_probe(doubt))

    def _probed(self, identity: Identity) -> Doubt | None:
        """The doubt that a probe can be asked about; None when there is no such record."""
        found = self.find(identity)
        if found is None:
            return None
        doubt = self.doubt_of(found.case, found.now)
        if doubt.probe is None:
            raise ConfigurationError(NOBODY)
        return doubt

    def bury(
        self,
        identity: Identity,
        *,
        by: str,
        reason: str,
        free: bool = False,
        seen: str | None = None,
    ) -> ops.Written | None:
        """Give an unknown record up: its key is expired; or, with ``free``, may run again.

        ``seen`` as for `settle`: `Lost` where the record is another by now.
        """
        ops.Act(by, reason)
        found = self.find(identity)
        if found is None:
            return None
        if seen not in (None, sighting(found.case.record)):
            return ops.Lost(found.case.record, found.now)
        terms = found.case.terms
        if terms is None and not free:
            raise UnknownRoute(found.case)
        tombstone = 0 if terms is None else terms.tombstone
        said = Witness("operator", by, reason).says("given up")
        fence = found.case.record.fence
        written = self._ask(ops.EvictUnknown(identity, fence, new_fence(), tombstone, said, free))
        if not isinstance(written, ops.Lost):
            self._emit("gave up", by, reason, identity)
        return written

    def evict(
        self,
        identity: Identity,
        *,
        by: str,
        reason: str,
        wait: bool = True,
        seen: str | None = None,
    ) -> ops.Written | None:
        """Remove a settled record: its key may run again. None when there is no such record.

        It returns when no process repeats the answer: after the longest ``replay_cache``. A second
        call waits again, since nobody knows when the first was. To evict many, give ``wait=False``
        and call `wait_out` after the last. ``seen`` as for `bury`.
        """
        said = by_operator(by, reason)
        found = self.find(identity)
        written: ops.Written | None = None
        if found is not None:
            if seen not in (None, sighting(found.case.record)):
                return ops.Lost(found.case.record, found.now)
            written = self._ask(ops.Evict(identity, found.case.record.fence, said))
            if isinstance(written, ops.Lost):
                return written
            self._emit("evicted", by, reason, identity)
        if wait:
            self.wait_out()
        return written

    def wait_out(self) -> None:
        """Return when no process repeats an answer that is evicted or erased by now."""
        time.sleep(self._outlast())

    def remembered_until(self) -> Micros | None:
        """When no process repeats an answer that is evicted by now, for who does not wait for it;
        None: none does."""
        seconds = self._outlast()
        return self.now() + int(seconds * 1_000_000) if seconds else None

    def _outlast(self) -> float:
        return outlast(self._guard.backend.blocking(), self._guard.runtime.replays)

    def erase(
        self,
        tenant: str,
        *,
        by: str,
        reason: str,
        progress: Callable[[Erasure], None] | None = None,
    ) -> Erasure:
        """Erase what is kept of a tenant's settled records in this application; tombstones refuse
        a second run.

        What is unsettled is left, and told. It reads the whole table, in pages. Returns when no
        process repeats an erased answer any more; only then the audit says that it is done. Asked
        again, it erases what has come since.
        """
        if not tenant:
            raise ConfigurationError("say whose records: tenant=")
        said = by_operator(by, reason)
        self._runner.run(maintenance.begin(tenant, said))
        try:
            done = self._erase_records(tenant, said, progress)
            self._erase_notables(tenant)
            self._emit("erased a tenant", by, reason, None)
            self.wait_out()
        except Exception as error:
            with suppress(StoreError):
                self._runner.run(maintenance.broke_off(tenant, said, error))
            raise
        self._runner.run(maintenance.end(tenant, said, done))
        return replace(done, after=None)

    def _erase_records(
        self, tenant: str, said: ops.Act, progress: Callable[[Erasure], None] | None
    ) -> Erasure:
        done = Erasure()
        with ThreadPoolExecutor(ERASED_AT_ONCE) as pool:
            while True:
                op = ops.ListBelongings(tenant, ERASED_PAGE, done.after, self._guard.name)
                page = self._ask(op)
                flows = [maintenance.erase(each, said) for each in page.found]
                erased = list(pool.map(self._runner.run, flows))
                pairs = zip(page.found, erased, strict=True)
                left = [each.identity for each, gone in pairs if not gone]
                done = Erasure(done.erased + erased.count(True), (*done.left, *left), page.until)
                if page.until is None:
                    return done
                if progress is not None:
                    progress(done)

    def _erase_notables(self, tenant: str) -> None:
        """What processes have noted and not written yet, they may still write within a minute."""
        recorder = self._guard.runtime.notables
        if recorder is not None:
            recorder.forget(tenant)
        while True:
            op = ops.EraseNotables(tenant, ERASED_PAGE, self._guard.name)
            if self._ask(op).count < ERASED_PAGE:
                return

    def rotate(
        self, *, by: str, reason: str, progress: Callable[[Rotation], None] | None = None
    ) -> Rotation:
        """Encrypt anew, under the current key, whatever is not; safe beside traffic."""
        from semel.operators.rotation import Rotator

        done = Rotator(self._guard, by_operator(by, reason)).run(progress)
        self._emit("rotated the keys", by, reason, None)
        return done

    def audit(
        self,
        *,
        identity: Identity | None = None,
        verb: str | None = None,
        by: str | None = None,
        since: Micros | None = None,
        before: str | None = None,
    ) -> Iterator[ops.AuditEntry]:
        """What was done, newest first; ``by`` is part of the name, ``since`` a time of the store's.

        ``before``: the place of an entry, to go on from. Filters are applied to what is read: the
        audit is small beside the records.
        """
        while True:
            page = self._ask(ops.BrowseAudit(_PAGE, before)).entries
            for entry in page:
                if since is not None and entry.at < since:
                    return
                wanted = identity in (None, entry.identity) and verb in (None, entry.verb)
                if wanted and (by is None or by in entry.by):
                    yield entry
            if len(page) < _PAGE:
                return
            before = page[-1].place

    def policy_of(self, case: Case) -> Policy | None:
        """The policy of a record's route, as this process has it; None where it has none."""
        return self._routes.policy(case.terms)

    def doubt_of(self, case: Case, now: Micros) -> Doubt:
        """Who can be asked about a record; `UnknownRoute` where this process cannot know."""
        return doubt_of(self._guard, self._routes, case, now)

    def notables(
        self,
        *,
        kinds: tuple[str, ...] = (),
        identity: Identity | None = None,
        route: str | None = None,
        since: Micros | None = None,
        before: str | None = None,
    ) -> Iterator[ops.NotableEntry]:
        """What is worth a look, newest first; ``since`` is a time of the store's.

        ``before``: go on from this place.
        """
        while True:
            page = self._ask(ops.BrowseNotables(_PAGE, before, kinds, identity, route))
            for entry in page.entries:
                if since is not None and entry.at < since:
                    return
                yield entry
            before = page.until
            if before is None:
                return

    def workers(self) -> ops.WorkersSeen:
        """Who looks after the records, and when they were last seen; the last seen first."""
        return self._ask(ops.ListWorkers(_PAGE))

    def now(self) -> Micros:
        """The time, by the store's clock."""
        return self._ask(ops.BrowseAudit(1)).now

    def list_unknown(self, *, dead: bool = False) -> Iterator[tuple[Case, Micros]]:
        """Every record in doubt, with the store's time: unknown ones, and such whose lease is past.

        ``dead``: only those nobody will ask about again.
        """
        states = (State.UNKNOWN,) if dead else (State.UNKNOWN, State.IN_PROGRESS)
        for case, now in cases(self._guard.backend.blocking(), states, dead=dead):
            record = case.record
            lapsed = record.lapsed(now) and record.on_lapse is OnLapse.UNKNOWN
            if record.state is State.UNKNOWN or lapsed:
                yield case, now

    def list_dead(self) -> Iterator[Effect]:
        """Every effect that could not be delivered."""
        return effects(self._guard, ops.Shelf.DEAD)

    def retry_dead(self, key: str, *, by: str, reason: str, died_at: Micros | None = None) -> bool:
        """Try a dead effect again from now on; False when there is no such dead effect.

        ``died_at``: the death that was decided on; one that has died again since is left.
        """
        return self._requeue(ops.Requeue(key, by_operator(by, reason), False, died_at), by, reason)

    def drop_dead(self, key: str, *, by: str, reason: str, died_at: Micros | None = None) -> bool:
        """Delete a dead effect for good; ``died_at`` and what it returns as for `retry_dead`."""
        return self._requeue(ops.Requeue(key, by_operator(by, reason), True, died_at), by, reason)

    def _requeue(self, op: ops.Requeue, by: str, reason: str) -> bool:
        """Requeue or drop a dead effect. A store reports success for an absent key: look first."""
        found = self._ask(ops.FindEffect(op.key)).effects if self._has_outbox else ()
        dead = next((effect for effect in found if effect.dead_at is not None), None)
        if dead is None or not self._ask(op).applied:
            return False
        act = "dropped an effect" if op.drop else "retried an effect"
        self._emit(act, by, reason, None, effect=dead.name)
        return True

    def _emit(
        self, act: str, by: str, reason: str, identity: Identity | None, effect: str | None = None
    ) -> None:
        which = "-" if identity is None else short(identity)
        self._guard.events.emit(
            "operator", act=act, by=by, identity=which, effect=effect, reason=reason
        )

    def _identities(self, where: KeyAddress) -> Iterator[Identity]:
        """The identities that the key may have, under any settings but those with a session."""
        path = keys.canonical_path(unquote_to_bytes(where.path))
        place = (where.tenant, where.method.upper(), path)
        for scope in (
            keys.Scope(*place, "route", None, self._guard.name),
            keys.Scope(*place, "tenant", None, self._guard.name),
        ):
            for key in dict.fromkeys((where.key, where.key.lower())):  # as key="uuid" has it
                yield Identity(keys.identity(scope, key))


def sighting(record: Record) -> str:
    """What a person has seen of a record, in one word: another one when it has changed since.

    Made of the fence, which it does not tell: a page may carry it.
    """
    return sha256(b"semel seen\n" + record.state.encode() + b"\n" + record.fence).hexdigest()[:32]


def voucher(record: Record, said: str) -> str:
    """Proves that this process, or another on this store, has said this of the record as it is.

    A form brings back what its page said; without this, whoever sends it could say anything. Made
    of the fence, like a `sighting`: no page tells it.
    """
    return hmac.digest(record.fence, b"semel said\n" + said.encode(), "sha256").hex()[:32]


def by_operator(by: str, reason: str) -> ops.Act:
    """The act of a person, for the audit; neither word may be empty."""
    ops.Act(by, reason)
    return ops.act(f"operator {by}", reason)
