"""A store of the test's own in the place of a guard's, for as long as the test lasts."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import sys
import tempfile
import unittest
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Case, Identity
from semel.core.recovery import journal as journals
from semel.errors import ConfigurationError
from semel.guard import Guard
from semel.runtime.runtime import Runtime
from semel.stores import scheme
from semel.stores.base import Backend, BackendWrapper
from semel.stores.sqlite import SqliteBackend
from semel.testing.assertions import EffectSeen, assert_replayed, effects_of
from semel.testing.clock import StoreClock
from semel.testing.due_work import run_due
from semel.testing.process import (
    BEHIND,
    COMPLETING,
    PLACES,
    WITHIN,
    Observed,
    ProcessCrashed,
    SimulatedProcess,
)
from semel.testing.watched import WatchedBackend

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds that an operation may take: a slow machine is no outage."""

_TAKEN: Final[dict[Guard, PrivateStore]] = {}
"""The guards that have a private store now."""


def not_given_back() -> list[str]:
    """Guards that still have a private store, each in a line."""
    return [f"{guard!r} has the private store of {held.place}" for guard, held in _TAKEN.items()]


@frozen
class _Own:
    """What a guard had before."""

    guard: Guard
    backend: Backend
    runtime: Runtime
    new_runtime: Callable[[], Runtime]
    maintenance: Any


class PrivateStore:
    """A SQLite store in the place of a guard's own, whatever that was made with.

    ``with PrivateStore(guard) as store: …``. Atomic handlers, points and effects work there.
    A guard on ``django://`` keeps the database that Django's tests have. ``more``: other guards of
    the application, which share it. ``folder``: where its file is left;
    without one it is removed in the end.
    """

    def __init__(self, guard: Guard, *more: Guard, folder: Path | None = None) -> None:
        self._guards = (guard, *more)
        for each in self._guards:
            if not isinstance(each, Guard):
                raise ConfigurationError(f"PrivateStore() takes a semel.Guard, not {each!r}")
        self._folder = folder
        self._own: list[_Own] = []
        self._observed = Observed()
        self.clock = StoreClock()
        """What the store takes for the time."""
        self.place = ""
        """The line of the test that took it."""

    @property
    def url(self) -> str:
        """Of the store; the application's own tables go into the same file."""
        self._demand_taken()
        return self._guards[0].backend.url

    def _demand_taken(self) -> None:
        if not self._own:
            raise ConfigurationError(
                "no guard has this store yet, or any more: with PrivateStore(guard) as store: …"
            )

    # ── in and out of the guards ──────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        for guard in self._guards:
            _demand_unused(guard)
        with contextlib.ExitStack() as opened:
            folder = self._folder and tempfile.mkdtemp(prefix="semel-", dir=self._folder)
            folder = folder or opened.enter_context(tempfile.TemporaryDirectory(prefix="semel-"))
            self._opened = opened.pop_all()
        url = f"sqlite:///{folder}/semel.db"
        self._backend = SqliteBackend(url, timeout=PATIENCE, clock=self.clock)
        self.place = _caller()
        self.clock.movable = not any(_in_django(guard.backend) for guard in self._guards)
        for guard in self._guards:
            own = _Own(guard, guard.backend, guard.runtime, guard.new_runtime, guard.maintenance)
            self._own.append(own)
            guard.backend = _wrapped_alike(guard.backend, self._backend)
            guard.maintenance = None  # a test says when work is done: `run_once`
            guard.new_runtime = partial(self._new_runtime, guard)
            _TAKEN[guard] = self
        self._start_process()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        busy = [repr(guard) for guard in self._guards if _busy(guard.runtime)]
        while self._own:
            own = self._own.pop()
            guard = own.guard
            guard.runtime.close()
            guard.backend, guard.runtime = own.backend, own.runtime
            guard.new_runtime, guard.maintenance = own.new_runtime, own.maintenance
            del _TAKEN[guard]
        self._backend.close()
        self._opened.close()
        if busy and error is None:
            raise ConfigurationError(
                f"{', '.join(busy)}: requests were still under way when the private store was "
                "given back; end the servers, threads and tasks of the test first"
            )

    def _start_process(self) -> None:
        self._process = SimulatedProcess(self._guards, self._observed, self._start_process)
        for guard in self._guards:
            guard.runtime = guard.new_runtime()

    def _new_runtime(self, guard: Guard) -> Runtime:
        return guard.runtime_on(WatchedBackend(guard.backend, self._process))

    # ── what happens to it ────────────────────────────────────────────────────────────────────────

    def run_once(self, app: Any = None) -> dict[str, int]:
        """Do what is due, as a worker would: by the name of each loop, how much it did.

        ``maintain``: leases that are past, answers past their retention. ``reconcile``: probes.
        ``run``: stored requests, through ``app``, the outermost application; without one they are
        left alone. ``deliver``: effects.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.arun_once(app))
        raise ConfigurationError("in an event loop write: await semel_store.arun_once(app)")

    async def arun_once(self, app: Any = None) -> dict[str, int]:
        """`run_once`, awaited."""
        self._demand_taken()
        done: dict[str, int] = {}
        for guard in self._guards:
            for name, count in (await run_due(guard, app)).items():
                done[name] = done.get(name, 0) + count
        return done

    @contextmanager
    def crash(self, place: str) -> Generator[None]:
        """End the process at a place that is reached in this block, as ``kill -9`` would.

        ``"after claim"``: before the handler. ``"within point NAME"``: its function has returned,
        and that is not on record. ``"after point NAME"``: it is on record. ``"before completion"``:
        the handler has answered, and its answer is not on record; ``"after completion"``: it is,
        and was not sent. Nobody gets an answer; the block ends there.
        """
        named = any(place.removeprefix(where) not in (place, "") for where in (WITHIN, BEHIND))
        if place not in PLACES[:1] + PLACES[3:] and not named:
            raise ConfigurationError(f"no such place: {place!r}; there are {', '.join(PLACES)}")
        self._demand_taken()
        process, begun = self._process, len(self._observed.moments)
        process.ends_at = place
        try:
            yield
        except BaseException as error:
            if not process.over or not _is_crash(error):
                raise
        finally:
            process.ends_at = process.ends_at if process.over else None
        if not process.over:
            reached = self._observed.moments[begun:]
            raise AssertionError(
                f"{place!r} was not reached; reached were: {', '.join(reached) or 'no places'}"
            )

    @contextmanager
    def leave_unknown(self, reason: str = "a test has lost the outcome") -> Generator[None]:
        """The handler that runs in this block answers, and nobody gets to know what.

        Its record is unknown: a probe is asked about it once its time has come, and a retry is
        told so.
        """
        process = self._process
        with self.crash(COMPLETING):
            yield
        op = None if process.last is None else process.last.op
        if not isinstance(op, ops.Complete):
            raise AssertionError(
                "an atomic handler leaves nothing unknown: its transaction was rolled back"
            )
        store = self._guards[0].backend.blocking()
        found = store.perform(ops.Recall(op.identity))
        terms = found.case.terms if isinstance(found, ops.Recalled) else None
        asks = terms is not None and terms.probe
        after = terms.reconcile_after if terms is not None and asks else None
        store.perform(ops.Suspend(op.identity, op.fence, reason, after))

    # ── what became of it ─────────────────────────────────────────────────────────────────────────

    def state(self, key: str, path: str | None = None) -> str | None:
        """The state of the record that ``key`` was used for, by the store's clock; None: there is
        none.

        ``path``: where it was used, if in several places.
        """
        case = self._case(key, path)
        return None if case is None else case.record.state.value

    def points(self, key: str, path: str | None = None) -> tuple[str, ...]:
        """The names of the points that are on record, in order; an intent alone is not."""
        case = self._case(key, path)
        journal = journals.decode(None if case is None else case.journal)
        return tuple(point.name for point in journal.points if point.done)

    def runs(self, key: str, path: str | None = None) -> int:
        """How often a handler was begun for ``key``: a replay begins none, a resumption one."""
        return self._observed.runs[self._identity(key, path)]

    def effects(self, name: str | None = None) -> list[EffectSeen]:
        """What is in the outbox, waiting, delivered or dead; the oldest first."""
        self._demand_taken()
        return sorted(effects_of(self._guards[0], name), key=lambda effect: effect.created_at)

    def assert_once(self, send: Callable[[], T]) -> T:
        """Send a request twice: the handler runs for the first, and the second is its replay.

        Returns the second answer.
        """
        before = self._observed.runs.total()
        first, again = send(), send()
        assert_replayed(first, again)
        ran = self._observed.runs.total() - before
        if ran != 1:
            raise AssertionError(f"the handler was begun {ran} times for two requests, not once")
        return again

    def _case(self, key: str, path: str | None) -> Case | None:
        found = self._guards[0].backend.blocking().perform(ops.Recall(self._identity(key, path)))
        return found.case if isinstance(found, ops.Recalled) else None

    def _identity(self, key: str, path: str | None) -> Identity:
        self._demand_taken()
        used = self._observed.identities.get(key, {})
        found = [identity for identity, place in used.items() if path in (None, place.split()[1])]
        if len(found) == 1:
            return found[0]
        keys, places = ", ".join(self._observed.identities), ", ".join(used.values())
        if not used:
            raise AssertionError(f"no request came with the key {key!r}; those that came: {keys}")
        raise AssertionError(f"the key {key!r} was used at {places}: say path=")


def _demand_unused(guard: Guard) -> None:
    if guard in _TAKEN:
        raise ConfigurationError(
            f"{guard!r} has the private store of {_TAKEN[guard].place}, which was not given back: "
            "leave that with-block, or call its __exit__"
        )
    begun = guard.runtime.begun and not _in_django(guard.backend)
    if begun or _busy(guard.runtime):
        raise ConfigurationError(
            f"{guard!r} has served requests in this process, on its own store: a server runs here, "
            "or a test used it without a private store. Give that test one too; or end the server, "
            "and call guard.close()"
        )


def _caller() -> str:
    """The line that took the store, outside of semel and of the standard library."""
    inside = (str(Path(__file__).parent), contextlib.__file__, str(Path(unittest.__file__).parent))
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _in_django(backend: Backend) -> bool:
    return scheme(backend.url) == "django"


def _busy(runtime: Runtime) -> bool:
    return bool(runtime.running or runtime.keeper.leases.held)


def _wrapped_alike(given: Backend, own: Backend) -> Backend:
    """``own`` in the wrappers of ``given``: what it encrypts or caches, a test does too."""
    if _in_django(given):
        return given  # where Django's tests have a database of their own, and the ORM writes to it
    if not isinstance(given, BackendWrapper):
        return own
    made = copy.copy(given)
    made.inner = _wrapped_alike(given.inner, own)
    return made


def _is_crash(error: BaseException) -> bool:
    """Task groups put what they raise into groups."""
    within: Sequence[BaseException] = getattr(error, "exceptions", ())
    return isinstance(error, ProcessCrashed) or (bool(within) and all(map(_is_crash, within)))
