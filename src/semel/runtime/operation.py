"""`semel.operation()`: what a running handler can learn about its own key, and do under it.

An operation is what the handler sees of its `Run`; what the adapter sees of it is not for users.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, overload

from semel.core.exchange.exchange import Progress
from semel.core.policy import LONGEST
from semel.core.records import Fence, Identity, Micros
from semel.core.recovery.was_sent import says_not_executed
from semel.core.request import keys
from semel.errors import ConfigurationError, OutcomeUnknown, doubts
from semel.runtime.leases import Lease, lease_clock
from semel.stores.open_transactions import in_event_loop

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.core.operations.outbox import EffectWritten, Enqueue
    from semel.core.policy import RoutePlan
    from semel.core.records import Origin
    from semel.core.recovery.journal import Journal
    from semel.core.recovery.points import PointCall
    from semel.stores.base import Backend


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Known:
    """What `Operation` and `AsyncOperation` have in common."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def identity(self) -> Identity:
        """32 bytes that name this key for good; a nullable foreign key for business rows."""
        return self._run.lease.identity

    @property
    def fence(self) -> Fence:
        """Proof of this very run."""
        return self._run.lease.fence

    @property
    def held(self) -> bool:
        """Whether the lease is still this run's, as far as the process can know without asking."""
        return self._run.held()

    def downstream_key(self, name: str) -> str:
        """The idempotency key to send to a provider: derived, the same on every retry."""
        return keys.downstream_key(self.identity, self._run.epoch, "call", name)

    @property
    def transaction(self) -> Any:
        """The open transaction, as a connection of `sqlite3`, psycopg or PyMySQL; semel commits it.

        In atomic mode that of the whole handler, in a phase that of the phase.
        """
        return self._run.open_transaction().connection

    def resource(self, name: str) -> None:
        """Name what is being made: after `Guard.retire` of it this answer is not repeated."""
        if not name:
            raise ConfigurationError("resource() takes the name of what was made")
        self._run.resource = name

    def keep_for(self, retention: timedelta) -> None:
        """Keep the answer for at least this long, from its completion on; a century at most."""
        self._run.retention = min(retention, LONGEST) // timedelta(microseconds=1)


class Operation(_Known):
    """The operation that a handler is running.

    `phase`, `call` and `enqueue` block: in an event loop they are those of an `AsyncOperation`.
    """

    __slots__ = ()

    @property
    def session(self) -> Session:
        """The open transaction, as a session of SQLAlchemy."""
        session: Session = self._run.open_transaction().session
        return session

    def phase(self, name: str, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run ``function`` in a transaction, once: its result (JSON) is journaled with its writes.

        Resumed, the operation gets the journaled result and the function is not run again.
        """
        from semel.runtime.recovery_points import Points

        _refuse_in_event_loop("phase")
        result: T = Points(self._run).phase(_point_call(name, function, arguments))
        return result

    def call(
        self,
        name: str,
        function: Callable[[str, *Ts], T],
        *arguments: *Ts,
        repeatable: bool = False,
    ) -> T:
        """Make at most one outside effect: ``function(downstream_key, *arguments)``.

        The intent is on record before, the result (JSON) after. A resumed operation that finds the
        intent alone makes the call again if it is ``repeatable`` (the provider honours the key),
        else it asks the probe, else the outcome is unknown.
        """
        from semel.runtime.recovery_points import Points

        _refuse_in_event_loop("call")
        point = _point_call(name, function, arguments)
        result: T = Points(self._run).call(point, repeatable)
        return result

    def enqueue(
        self,
        name: str,
        payload: Any,
        *,
        which: str = "",
        order: str | None = None,
        delay: timedelta = timedelta(0),
    ) -> str:
        """Write an effect into the outbox, in the open transaction; returns its downstream key.

        A worker delivers it after the commit, by whoever `Guard.delivers` registered for ``name``.
        ``which`` tells apart several of one name; the key is made of both.
        """
        _refuse_in_event_loop("enqueue")
        op = _enqueue(self._run, name, which, payload, order, delay)
        backend: Any = self._run.backend
        return _written(op, backend.on(self.transaction).perform(op))


class AsyncOperation(_Known):
    """The operation that a handler is running in an event loop."""

    __slots__ = ()

    @property
    def session(self) -> AsyncSession:
        """The open transaction, as an async session of SQLAlchemy."""
        session: AsyncSession = self._run.open_transaction().session
        return session

    # Each of these is noted when it is made, so that one which nobody awaits is not overlooked.

    @overload
    def phase(
        self, name: str, function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def phase(
        self, name: str, function: Callable[[*Ts], T], *arguments: *Ts
    ) -> Coroutine[Any, Any, T]: ...
    def phase(
        self, name: str, function: Callable[[*Ts], Any], *arguments: *Ts
    ) -> Coroutine[Any, Any, Any]:
        """`Operation.phase`, awaited; ``function`` may be a coroutine function."""
        from semel.runtime.recovery_points import AsyncPoints

        point = _point_call(name, function, arguments)
        return self._run.making(name, AsyncPoints(self._run).phase(point))

    @overload
    def call(
        self,
        name: str,
        function: Callable[[str, *Ts], Awaitable[T]],
        *arguments: *Ts,
        repeatable: bool = False,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def call(
        self,
        name: str,
        function: Callable[[str, *Ts], T],
        *arguments: *Ts,
        repeatable: bool = False,
    ) -> Coroutine[Any, Any, T]: ...
    def call(
        self,
        name: str,
        function: Callable[[str, *Ts], Any],
        *arguments: *Ts,
        repeatable: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """`Operation.call`, awaited; ``function`` may be a coroutine function."""
        from semel.runtime.recovery_points import AsyncPoints

        point = _point_call(name, function, arguments)
        return self._run.making(name, AsyncPoints(self._run).call(point, repeatable))

    def enqueue(
        self,
        name: str,
        payload: Any,
        *,
        which: str = "",
        order: str | None = None,
        delay: timedelta = timedelta(0),
    ) -> Coroutine[Any, Any, str]:
        """`Operation.enqueue`, awaited."""
        op = _enqueue(self._run, name, which, payload, order, delay)
        return self._run.making(name, self._write(op))

    async def _write(self, op: Enqueue) -> str:
        kept: Any = self._run.open_transaction().perform(op)
        # An ``async def`` view of Flask's runs in a loop of its own, over a blocking transaction.
        return _written(op, await kept if hasattr(kept, "__await__") else kept)


def _point_call(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> PointCall:
    from semel.core.recovery.points import PointCall

    if not name or not callable(function):
        raise ConfigurationError("a point takes a name and a function")
    handler = sys._getframe(2)  # the module that calls the method which calls this
    return PointCall(
        name, function, arguments, str(handler.f_globals["__name__"]).partition(".")[0]
    )


def _enqueue(
    run: Run, name: str, which: str, payload: Any, order: str | None, delay: timedelta
) -> Enqueue:
    """The same one a second time is a mistake: by its key it would be taken for the first."""
    from semel.core.delivery import encode_payload  # not loaded for those who write none
    from semel.core.operations.outbox import Enqueue

    texts = isinstance(name, str) and isinstance(order, str | None)
    if not texts or not name or delay < timedelta(0):
        raise ConfigurationError(
            "an effect takes a name, an order that is text or None, and no delay below zero"
        )
    try:
        body = encode_payload(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the payload of {name!r} must be JSON: {error}") from error
    identity = run.lease.identity
    said = f"{name}\0{which}" if which else name
    key = keys.downstream_key(identity, run.created_at, "effect", said)
    if key in run.effects:
        raise ConfigurationError(
            f"effect {name!r} was written already: tell several of one name apart by which="
        )
    run.effects.add(key)
    after: Micros = delay // timedelta(microseconds=1)
    return Enqueue(key, identity, name, body, order, after, run.plan.application)


def _written(op: Enqueue, kept: EffectWritten) -> str:
    """Its key; passed over in silence, a second effect of that key would never be delivered."""
    if not kept.applied:
        raise ConfigurationError(
            f"effect {op.name!r} is in the outbox already, from an earlier point or an earlier use "
            "of this Idempotency-Key: tell several of one name apart by which=, and keep delivered "
            "effects no longer than keys (keep= of guard.delivers)"
        )
    return op.key


class Run(Progress):
    """One run of a handler, and what its answer may hide."""

    __slots__ = (
        *("_outer", "created_at", "doubts", "effects"),
        *("backend", "lease", "origin", "plan", "probes"),
    )

    def __init__(
        self,
        backend: Backend,
        probes: Mapping[str, Callable[..., Any]],
        plan: RoutePlan,
        origin: Origin,
        lease: Lease,
        journal: Journal | None,
        created_at: Micros,
    ) -> None:
        super().__init__(journal)
        # Nothing of its exchange: a circle would leave every request to the garbage collector.
        self.backend = backend
        self.probes = probes
        self.plan = plan
        self.origin = origin
        self.lease = lease
        self.created_at = created_at
        """When this life of the key began."""
        self.effects: set[str] = set()
        """The keys of those put into the outbox."""
        self.doubts: list[OutcomeUnknown] = []
        """Those that the handler has made, wherever they were caught."""
        self._outer: BaseException | None = None

    @property
    def epoch(self) -> Micros:
        """The part of it that goes into downstream keys, as in `core/unknown/evidence.py`."""
        return keys.ONE_LIFE if self.plan.policy.mode == "atomic" else self.created_at

    def held(self) -> bool:
        return self.lease.held(lease_clock())

    def open_transaction(self) -> Any:
        """What is open: for the whole run in atomic mode, else for one phase at a time."""
        opened = self.lease.transaction
        if opened is None:
            raise ConfigurationError(
                "no transaction is open here: use a route with mode='atomic', or a phase"
            )
        return opened

    def enter(self) -> Callable[[], None]:
        """Make this the run of the current context; the result undoes that."""
        before, noted = self.occupy()

        def leave() -> None:
            _run.reset(before)
            doubts.reset(noted)

        return leave

    def occupy(self) -> tuple[Token[Run | None], Token[list[OutcomeUnknown] | None]]:
        """`enter`, for a context that ends with the run and needs no undoing."""
        self._outer = sys.exception()
        return _run.set(self), doubts.set(self.doubts)

    def note(self, error: BaseException) -> None:
        """Remember an exception that a framework is about to turn into an answer.

        While the endpoint runs it is that of another request, which the endpoint made by itself.
        """
        if not self.inside:
            self.raised.append(error)

    def error_behind(self, status: int) -> BaseException | None:
        """What an answer hides: a doubt of the handler's, or the exception behind a 5xx.

        Most frameworks answer from within their ``except`` block, so that the exception is in
        sight; those that do not are made to note it.
        """
        error: BaseException | None = None
        if status >= 500:
            error = self._handled() or self.doubt or (self.raised[-1] if self.raised else None)
        if self.doubts and not says_not_executed(error):
            return self.doubts[-1]
        return error

    def _handled(self) -> BaseException | None:
        """The exception in sight; what whoever called us handles is not ours."""
        error = sys.exception()
        return None if error is self._outer else error

    def has_raised(self, status: int) -> bool:
        """Whether an answer was made of an exception: in a transaction, to raise is to undo.

        A success is none, wherever it is sent from.
        """
        return status >= 400 and (self._handled() is not None or bool(self.raised))


_run: ContextVar[Run | None] = ContextVar("semel_run", default=None)


def current_run() -> Run | None:
    """The run that the current context belongs to, if any."""
    return _run.get()


def note(error: BaseException) -> None:
    """Remember what an endpoint raised, whatever answer is made of it further out."""
    run = _run.get()
    if run is not None:
        run.note(error)


def entered() -> None:
    """The endpoint of the current run was called."""
    run = _run.get()
    if run is not None:
        run.entered = True


class _Watch:
    """A call of an endpoint: its run learns that it began, and how it was left."""

    __slots__ = ("_progress", "_whole")

    def __init__(self, progress: Progress, whole: bool) -> None:
        self._progress = progress
        self._whole = whole

    def __enter__(self) -> None:
        self._progress.inside += self._whole

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._progress.inside -= self._whole
        if error is not None:
            self._progress.raised.append(error)
        elif self._whole:
            self._progress.returned = True


_NOBODY: Final = nullcontext()


def watched(*, whole: bool = True) -> AbstractContextManager[None]:
    """Put around a call of an endpoint: its run notes what it raises, and that it has returned.

    ``whole`` is False for code that only runs before the endpoint: then what it raises is noted,
    and that it returned is not. A call within another is not the run's own: it belongs to a request
    that the endpoint made in this process, and is not noted.
    """
    run = _run.get()
    return _NOBODY if run is None or run.inside else _Watch(run, whole)


def returned(result: T) -> T:
    """What an endpoint has returned. Whatever is raised from here on, it has acted."""
    run = _run.get()
    if run is not None:
        run.returned = True
    return result


def operation() -> Operation:
    """The operation of the handler that is running, for plain functions.

    LookupError outside a request that carries a key.
    """
    return Operation(_its_run("semel.operation()"))


def async_operation() -> AsyncOperation:
    """The operation of the handler that is running, for coroutine functions.

    LookupError outside a request that carries a key.
    """
    return AsyncOperation(_its_run("semel.async_operation()"))


def fitting_operation() -> Operation | AsyncOperation:
    """Whichever of them fits here: for what is imported, not called, as in Flask."""
    return async_operation() if in_event_loop() else operation()


def _its_run(asked: str) -> Run:
    run = _run.get()
    if run is None:
        raise LookupError(
            f"{asked}: no request with an Idempotency-Key is running here. "
            "If the handler cannot do without one, say required=True in its policy"
        )
    return run


def _refuse_in_event_loop(verb: str) -> None:
    """Nothing has been done yet. It would stop the loop, and use a store for threads."""
    if in_event_loop():
        raise ConfigurationError(
            f"in an event loop, {verb} of semel.operation() would block it: "
            f"await semel.async_operation().{verb}(...)"
        )
