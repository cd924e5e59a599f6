"""Notables, and the workers that were last seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from semel.core import operations as ops
from semel.core.records import Micros
from semel.core.texts import exact, indexed, shown
from semel.errors import ConfigurationError
from semel.stores.memory.outbox import Answers
from semel.stores.options import whole


class _Line(NamedTuple):
    """A notable as it is kept."""

    entry: ops.NotableEntry
    forget_at: Micros


class MemoryNotables:
    """Notables by place, oldest first; workers by id."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._places = 0
        self._workers: dict[str, ops.WorkerSeen] = {}

    def answers(self) -> Answers:
        return {
            ops.WriteNotables: self._write,
            ops.BrowseNotables: self._browse,
            ops.EraseNotables: self._erase,
            ops.Prune: self._prune,
            ops.Beat: self._beat,
            ops.ListWorkers: self._list_workers,
        }

    def _write(self, op: ops.WriteNotables, now: Micros) -> ops.NotablesChanged:
        for each in op.notables:
            self._places += 1
            entry = ops.NotableEntry(
                *(str(self._places), now, each.kind.value, indexed(each.application)),
                *(shown(each.route), shown(each.tenant), each.identity, exact(each.detail)),
                each.count,
            )
            self._lines[self._places] = _Line(entry, now + op.keep)
        return ops.NotablesChanged(len(op.notables), now)

    def _browse(self, op: ops.BrowseNotables, now: Micros) -> ops.NotableEntries:
        before = self._places + 1 if op.before is None else whole(op.before)
        if before is None:
            raise ConfigurationError("this is no place in the notables of this store")
        older = [line.entry for place, line in self._lines.items() if place < before]
        found = [each for each in reversed(older) if op.wants(each)]
        until = found[op.limit - 1].place if found and len(found) >= op.limit else None
        return ops.NotableEntries(tuple(found[: op.limit]), until, now)

    def _erase(self, op: ops.EraseNotables, now: Micros) -> ops.NotablesChanged:
        tenant, application = shown(op.tenant), indexed(op.application)

        def theirs(line: _Line) -> bool:
            return (line.entry.tenant, line.entry.application) == (tenant, application)

        return ops.NotablesChanged(self._delete(theirs, op.limit), now)

    def _prune(self, op: ops.Prune, now: Micros) -> ops.Tended:
        surplus = self._places - ops.MOST_NOTABLES
        old = self._delete(lambda line: line.forget_at <= now, op.limit)
        many = self._delete(lambda line: int(line.entry.place) <= surplus, op.limit)
        silent = now - ops.WORKER_MEMORY
        gone = [name for name, seen in self._workers.items() if seen.until <= silent][: op.limit]
        for name in gone:
            del self._workers[name]
        counts = {"notables": old + many, "workers": len(gone)}
        more = max(old, many, len(gone)) >= op.limit
        return ops.Tended({name: count for name, count in counts.items() if count}, more, now)

    def _delete(self, which: Callable[[_Line], bool], limit: int) -> int:
        """Delete the oldest of these; returns how many."""
        found = [place for place, line in self._lines.items() if which(line)][:limit]
        for place in found:
            del self._lines[place]
        return len(found)

    def _beat(self, op: ops.Beat, now: Micros) -> ops.Beaten:
        given = op.worker
        name = exact(given.id)
        if op.lease is None:
            self._workers.pop(name, None)
            return ops.Beaten(now)
        kept = ops.WorkerInfo(
            *(name, indexed(given.application), shown(given.role), shown(given.does)),
            *(shown(given.host), given.pid, shown(given.version), given.leading),
        )
        self._workers[name] = ops.WorkerSeen(kept, now, now + op.lease)
        return ops.Beaten(now)

    def _list_workers(self, op: ops.ListWorkers, now: Micros) -> ops.WorkersSeen:
        seen = sorted(self._workers.values(), key=lambda each: (-each.seen_at, each.worker.id))
        return ops.WorkersSeen(tuple(seen[: op.limit]), now)
