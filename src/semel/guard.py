"""The guard: one object per application that ties store, tenant, policies and adapters together.

It is settings and the public face. Making one does no I/O. What a process does with it is its
`Runtime`; a forked child has its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from semel.core.exchange.admit import Tenant, named_tenant
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.policy import (
    Enforce,
    Policy,
    RefusalShape,
    accepted,
    acp,
    checked_refusal,
    exempt,
    ietf,
    payments,
    stripe,
)
from semel.core.request.key_places import KeyFrom, key_places
from semel.core.request.path_pattern import CONTRACT_ADDRESS
from semel.core.terms import EVERY_ROUTE
from semel.core.unknown.evidence import ProbeFunction
from semel.errors import ConfigurationError
from semel.log import log
from semel.outbox.effects import Deliverer, DeliverFunction, Registry
from semel.runtime.breaker import Health, alook, look
from semel.runtime.events import Events, Subscriber
from semel.runtime.limits import Limits
from semel.runtime.replay_cache import outlast
from semel.runtime.runtime import Background, Runtime, give_runtime
from semel.runtime.transactions import transactional
from semel.stores import open_backend
from semel.stores.base import Backend, FailsOver, performer
from semel.stores.body_cache import with_body_cache
from semel.web.routes import Route
from semel.web.tags import TAG, enforced, tag

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI
    from fastapi.params import Depends

    from semel.console import Authorize, Console
    from semel.inbox.inbox import Inbox, Reader
    from semel.once import Once
    from semel.operators.approvals import TwoPersonRule
    from semel.operators.operator import Operator
    from semel.operators.trace_link import TraceLink
    from semel.stores.encryption import Encryption
    from semel.web.asgi import Middleware
    from semel.web.asgi_exchange import AsgiApp
    from semel.web.wsgi import WsgiApp, WsgiMiddleware

F = TypeVar("F")
T = TypeVar("T")
D = TypeVar("D", bound=DeliverFunction)
P = TypeVar("P", bound=ProbeFunction)

MAX_BOUND = 1024
"""Policies a guard remembers. Most have a few; one made for each call would be one more each."""
SHORTEST_RETENTION = timedelta(hours=1)
"""Under this a client that sleeps over a lunch break runs its request twice."""


class Guard:
    """Makes the state-changing requests of an application take effect once.

    Everyday options:

    - ``store``: a URL (``sqlite:///semel.db``, ``postgresql://…``, ``memory://``) or a backend.
    - ``tenant``: names the verified caller of a request. ``None`` says that there is only one.
    - ``policy``: holds for every route without one of its own. ``routes``: policies by path.
    - ``migrate``: bring the store's schema up to date on first use.
    - ``name``: the application, where several share one store.
    - ``on_event``: a function that is told what happens, a `semel.Event` each; or several.
    - ``refusal``: puts refusals into the API's own shape, on routes whose policy has none.
    - ``enforce``: ``"shadow"`` only watches, on routes whose policy says nothing else.
    - ``key_from``: where the key is, on routes whose policy does not say.
    - ``publish``: clients may read the contract at ``/.well-known/idempotency``.

    What is stored, and how much: ``secrets`` seal fingerprints, ``encryption`` encrypts requests
    and answers, ``limits`` bound what one tenant may ask for.

    Answers repeated from memory: ``replay_cache``, ``replay_bodies``.

    What operators see later: ``notables`` is how long mismatches, conflicts, refusals and webhooks
    are remembered (None: they are not), ``note_replays`` has replays counted by their keys too,
    ``trace_url`` is the search of the tracing system, to which the console links.

    The process: ``status`` is the path of accepted requests, ``max_waiters`` and ``drain`` bound
    who waits, ``maintenance`` is the time between two rounds (None: workers alone look after the
    records), ``breaker`` the longest pause between two trials of a store that is out.
    """

    runtime: Runtime
    """What this process has of it."""

    def __init__(
        self,
        store: str | Backend = "sqlite:///semel.db",
        *,
        tenant: Tenant,
        policy: Policy | None = None,
        routes: Sequence[Route] = (),
        migrate: bool = False,
        name: str = "",
        on_event: Subscriber | Sequence[Subscriber] | None = None,
        refusal: RefusalShape | None = None,
        enforce: Enforce = "full",
        key_from: KeyFrom | None = None,
        publish: bool = False,
        # What is stored, and how much
        secrets: Mapping[str, bytes | str] | None = None,
        encryption: Encryption | None = None,
        limits: Limits | None = None,
        # Answers repeated from memory
        replay_cache: timedelta | None = None,
        replay_bodies: int = 0,
        # What operators see later
        notables: timedelta | None = timedelta(days=7),
        note_replays: bool = False,
        trace_url: str | None = None,
        # The process
        status: str = "/semel/status",
        max_waiters: int = 8,
        drain: timedelta = timedelta(seconds=30),
        maintenance: timedelta | None = timedelta(seconds=60),
        breaker: timedelta | None = timedelta(seconds=10),
    ) -> None:
        if tenant is not None and not callable(tenant):
            raise ConfigurationError("tenant= takes a function of the request, or None")
        self.tenant = tenant
        self.events = Events(on_event)
        """Where everything worth a number or a line of the log is told."""
        opened = _backend(store, migrate)
        if isinstance(opened, FailsOver):
            opened.on_failover(
                lambda was, now: self.events.emit("store.failover", was=was, now=now)
            )
        self.backend = with_body_cache(opened, replay_bodies)
        if encryption is not None:
            from semel.stores.encryption import EncryptedBackend

            self.backend = EncryptedBackend(self.backend, encryption)
        if secrets is not None and not isinstance(secrets, Mapping):
            raise ConfigurationError('secrets= takes secrets by key id: {"2026-01": b"..."}')
        self._secrets = tuple(
            (key_id, secret.encode() if isinstance(secret, str) else secret)
            for key_id, secret in (secrets or {}).items()
        )
        self._refusal = checked_refusal(refusal)
        if enforce not in ("full", "shadow"):
            raise ConfigurationError(f"enforce={enforce!r} is not one of 'full', 'shadow'")
        self._enforce = enforce
        self._key_from = None if key_from is None else key_places(key_from).listed
        self.key_headers: frozenset[bytes] = frozenset()
        """The headers in which some route looks for a key."""
        self.environ_names: frozenset[str] = frozenset()
        """The same, as WSGI has them."""
        self.reads_bodies = False
        """Some route may have its key in the body."""
        self._bound: dict[int, tuple[Policy, Policy]] = {}
        self.hides_runs = False
        """Whether a request may be told of another that runs in a transaction nobody sees."""
        self.policy = self.bind(ietf() if policy is None else policy)
        self.routes = tuple(
            replace(route, policy=self.bind(route.policy)) for route in _routes(routes)
        )
        self.drain = _duration("drain", drain)
        if not isinstance(name, str):
            raise ConfigurationError(f"name= takes text, the application's name, not {name!r}")
        if not isinstance(max_waiters, int) or max_waiters < 0:
            raise ConfigurationError(f"max_waiters= takes a whole number, not {max_waiters!r}")
        self.name = name
        self.status = _status(status)
        if not isinstance(publish, bool):
            raise ConfigurationError(f"publish={publish!r} is neither True nor False")
        self.contract_at = CONTRACT_ADDRESS if publish else None
        """Where the contract is told; None: nowhere. An empty text is a path that requests have."""
        self.registry = Registry()
        self.trace_link = None if trace_url is None else _trace_link(trace_url)
        """Where the traces of a record are found; None: nobody has said."""
        self.limits = limits
        self.maintenance = _positive(maintenance, "maintenance= takes the time between rounds")
        """The time between two rounds; None: workers alone look after the records."""
        self._apps: list[Any] = []
        self._tagged: list[Any] = []
        """Applications and endpoints that have not been looked at: `_tell_unguarded`."""
        self.runtime_on: Callable[[Backend], Runtime] = partial(
            Runtime,
            events=self.events,
            application=name,
            probes=self.registry.probes,
            max_waiters=max_waiters,
            breaker=breaker,
            limits=limits,
            replay_cache=replay_cache,
            background=self._background,
            notables=_positive(notables, "notables= takes how long to keep them"),
            note_replays=note_replays,
        )
        self.new_runtime: Callable[[], Runtime] = lambda: self.runtime_on(self.backend)
        give_runtime(self)

    @classmethod
    def from_settings(cls, *, tenant: Tenant, path: Path | None = None, **options: Any) -> Self:
        """A guard as ``SEMEL_*`` variables and ``semel.toml`` describe it; ``options`` win."""
        from dataclasses import fields

        from semel.config import load

        settings = load(path)
        found = {setting.name: getattr(settings, setting.name) for setting in fields(settings)}
        if settings.store is None:
            del found["store"]
        return cls(tenant=tenant, **{**found, **options})

    # ── adapters ──────────────────────────────────────────────────────────────────────────────────

    def asgi(self, app: AsgiApp) -> Middleware:
        """Guard an ASGI application, as ``app.add_middleware(semel.Middleware, guard=…)`` does."""
        from semel.web.asgi import Middleware

        return Middleware(app, guard=self)

    def wsgi(self, app: WsgiApp) -> WsgiMiddleware:
        """Guard a WSGI application."""
        from semel.web.wsgi import WsgiMiddleware

        return WsgiMiddleware(app, guard=self)

    def fastapi(self, app: FastAPI, *, dependencies: Sequence[Depends] = ()) -> None:
        """Guard a FastAPI application: its dependencies run first, then the key is claimed.

        Its OpenAPI document tells of the header, its format and the refusals. ``dependencies``:
        those of the route that tells how accepted requests are doing.
        """
        from semel.frameworks.fastapi import install

        install(app, self, dependencies=dependencies)

    def route(self, policy: Policy) -> Callable[[F], F]:
        """Tag an endpoint with a policy of its own; the adapter finds it through the router.

        The endpoint runs under that policy or not at all: reached around its guard, it refuses.
        """
        self.bind(policy)  # what this guard cannot do is refused here, and not at every request

        def tagged(endpoint: F) -> F:
            if hasattr(endpoint, TAG):
                raise ConfigurationError(f"{endpoint!r} is tagged already: it has one policy")
            made: F = tag(policy, tells=True)(enforced(endpoint, policy, self.report_unguarded))
            if len(self._tagged) < MAX_BOUND:  # some decorators are called for every request
                self._tagged.append(made)
            return made

        return tagged

    def contract(self, app: Any = None) -> dict[str, Any]:
        """What clients may rely on, route by route, as JSON: docs/reference/contract.md.

        ``app``: the application, for the policies that are tagged on its endpoints.
        """
        from semel.web.contract import contract

        return contract(self, app)

    def once(
        self,
        key: str,
        function: Callable[[], T],
        *,
        name: str,
        payload: Any = None,
        tenant: str | int | None = None,
        policy: Policy | None = None,
    ) -> Once[T]:
        """Run ``function`` once for ``key``, however often this is called.

        ``name`` says what is done, ``payload`` what it is done to: the same key with another
        payload is a mistake. The result must be JSON; it is kept and returned to every later
        call. What an HTTP client would be refused with is raised as `semel.Refused`.
        """
        from semel.once import OnceCall

        return OnceCall(self, key, name, payload, tenant, policy).run(function)

    async def aonce(
        self,
        key: str,
        function: Callable[[], Awaitable[T]],
        *,
        name: str,
        payload: Any = None,
        tenant: str | int | None = None,
        policy: Policy | None = None,
    ) -> Once[T]:
        """`once` for a coroutine function; it is carried through when the caller is cancelled."""
        from semel.once import OnceCall

        return await OnceCall(self, key, name, payload, tenant, policy).arun(function)

    # ── effects and probes ────────────────────────────────────────────────────────────────────────

    def delivers(
        self,
        name: str,
        *,
        tries: int = 24,
        first_pause: timedelta = timedelta(seconds=1),
        longest_pause: timedelta = timedelta(hours=1),
        timeout: timedelta = timedelta(seconds=30),
        keep: timedelta = timedelta(days=7),
    ) -> Callable[[D], D]:
        """Register who delivers the effects called ``name``: a function of a `semel.Delivery`.

        An effect is tried ``tries`` times with growing, jittered pauses; then it is a dead letter.
        Delivered effects are remembered for ``keep``.
        """
        _decorated("@guard.delivers", name, '@guard.delivers("mail")')
        able = self.backend.capabilities
        if not able.outbox or (able.shared and not able.transactions):
            raise ConfigurationError(
                f"{self.backend.url} has no outbox that an application can write to: effects need "
                "a store with transactions, in the application's own database"
            )

        def register(function: D) -> D:
            pauses = (first_pause, longest_pause)
            self.registry.add_deliverer(Deliverer(name, function, tries, *pauses, timeout, keep))
            return function

        return register

    def probe(self, name: str) -> Callable[[P], P]:
        """Register who can be asked whether ``name`` happened: an operation's call, a `once`."""
        _decorated("@guard.probe", name, '@guard.probe("charge")')

        def register(function: P) -> P:
            self.registry.add_probe(name, function)
            return function

        return register

    # Twin of Guard.aenqueue, by tools.twins
    def enqueue(
        self,
        connection: Any,
        name: str,
        payload: Any,
        *,
        key: str | None = None,
        order: str | None = None,
        delay: timedelta = timedelta(0),
    ) -> str:
        """Write an effect into the outbox, in the transaction of ``connection``; returns its key.

        It exists if and only if that transaction commits; then a worker delivers it. ``key`` is the
        downstream key of every delivery; where it exists already, nothing is written. For code
        outside a keyed request; in a handler it is `Operation.enqueue`.
        """
        from semel.outbox.effects import new_effect, store_on

        op = new_effect(self.name, name, payload, key=key, order=order, delay=delay)
        store_on(self.backend, connection).perform(op)
        return op.key

    async def aenqueue(
        self,
        connection: Any,
        name: str,
        payload: Any,
        *,
        key: str | None = None,
        order: str | None = None,
        delay: timedelta = timedelta(0),
    ) -> str:
        """`enqueue` on a psycopg AsyncConnection."""
        from semel.outbox.effects import new_effect, store_on

        op = new_effect(self.name, name, payload, key=key, order=order, delay=delay)
        await store_on(self.backend, connection).perform(op)
        return op.key

    def inbox(
        self,
        source: str,
        secrets: str | bytes | Sequence[str | bytes] | None,
        reader: Reader,
        **options: Any,
    ) -> Inbox:
        """An endpoint for a provider's webhooks, which settle unknown outcomes.

        ``reader`` says of an event which record it is about and what it proves. Mount the inbox's
        ``asgi`` or ``wsgi``, or hand it headers and body with ``receive``.
        """
        from semel.inbox.inbox import Inbox

        return Inbox(self, source, secrets, reader, **options)

    def operator(self, app: Any = None) -> Operator:
        """For tools of one's own: look at, ask about and settle records nobody else can decide."""
        from semel.operators.operator import Operator

        return Operator(self, app)

    def console(
        self,
        *,
        authorize: Authorize,
        app: Any = None,
        hosts: Sequence[str] | None = None,
        two_person: TwoPersonRule | str | Collection[str] | None = None,
        trace_url: str | None = None,
        work_share: float | None = 0.1,
    ) -> Console:
        """The console for operators: an ASGI application to mount, with a ``wsgi`` for the others.

        ``authorize`` is given the request and returns who it is, a
        `semel.console.ConsoleUser(name, roles)`, or None: nobody is let in without. ``app``: the
        application, for policies that are tagged on its endpoints. ``hosts``: the names under
        which the console answers, where nothing in front of it checks them. ``two_person``: acts
        that a second person must approve, ``"all"`` or some of ``evict``, ``free``, ``absent``,
        ``erase`` and ``drop``. ``trace_url``: instead of the guard's own. ``work_share``:
        for what share of the time it may make pages; None: always.
        """
        from semel.console import Console

        own: dict[str, Any] = {"two_person": two_person, "trace_url": trace_url}
        own["work_share"] = work_share
        return Console(self, authorize, app=app, hosts=hosts, **own)

    # ── records ───────────────────────────────────────────────────────────────────────────────────

    def retire(self, resource: str, *, tenant: str | int | None = None) -> int:
        """What ``resource`` named has changed or is gone: answers that made it are not repeated.

        Returns how many there were, after every process has learnt of it: where one of them has a
        ``replay_cache``, after its window. ``tenant``: whose; a guard with tenants must say it.
        """
        import time

        count, seconds = self._retire(resource, tenant)
        time.sleep(seconds)
        return count

    async def aretire(self, resource: str, *, tenant: str | int | None = None) -> int:
        """`retire`, awaited."""
        import asyncio

        count, seconds = await asyncio.to_thread(self._retire, resource, tenant)
        await asyncio.sleep(seconds)
        return count

    def _retire(self, resource: str, tenant: str | int | None) -> tuple[int, float]:
        from semel.core.operations.maintenance import Retire

        who, store = named_tenant(tenant, self.tenant), self.backend.blocking()
        count = store.perform(Retire(resource, who, self.name)).count
        return count, outlast(store, self.runtime.replays)

    # ── life ──────────────────────────────────────────────────────────────────────────────────────

    def migrate(self) -> int:
        """Bring the store's schema up to date; safe when many nodes do so at once."""
        return self.backend.migrate()

    def start(self) -> None:
        """Open the store and compare the settings with what it remembers.

        Optional: the first request does the same. Called at start-up, a wrong setting stops the
        application before it serves anybody.
        """
        self._tell_unguarded(all_there=True)
        store, runtime = self.backend.blocking(), self.runtime
        known = [(EVERY_ROUTE, self.policy), *((each.label, each.policy) for each in self.routes)]
        for label, policy in known:
            plan = runtime.plan(label, policy)
            if not plan.enrolled:
                run(runtime.enrolment(plan), performer(store))

    def health(self) -> Health:
        """Ask the store something, and say whether it answered; for a check of readiness."""
        return look(self.runtime)

    async def ahealth(self) -> Health:
        """`health`, awaited."""
        return await alook(self.runtime)

    def close(self) -> None:
        """Finish what is under way in the background and close the store."""
        self.runtime.close()
        self.backend.close()
        self.events.close()

    async def aclose(self) -> None:
        """`close`, for the running event loop too."""
        import asyncio

        await self.backend.aclose()
        await asyncio.to_thread(self.close)

    # ── for adapters ──────────────────────────────────────────────────────────────────────────────

    def report_unguarded(self, endpoint: str) -> None:
        """An endpoint was reached around its policy, and has refused."""
        self.events.emit("unguarded", endpoint=endpoint)

    def stand_around(self, app: Any) -> None:
        """Remember an application. Once it has all its routes, unguarded ones are reported."""
        self._apps.append(app)

    def _tell_unguarded(self, all_there: bool = False) -> None:
        """``all_there``: at the start. Later, applications that are mounted may not have come."""
        if self._apps:
            from semel.web.inventory import tell_unguarded

            apps, tagged = self._apps, self._tagged
            self._apps, self._tagged = [], []
            tell_unguarded(apps, tagged, all_there)

    def _background(self, runtime: Runtime) -> Iterator[Background]:
        """The threads that stand beside a process's requests, from the first keyed one on.

        Where tenants may have so many keys and no more, every process must know how many. It looks
        after the records too, unless workers alone do.
        """
        self._tell_unguarded()
        limiter = runtime.limiter
        if limiter is not None and limiter.limits.active_keys is not None:
            from semel.worker.maintenance import INTERVAL, TenantCounter

            every = self.maintenance or INTERVAL
            yield TenantCounter(self, limiter, limiter.limits.active_keys, every)
        if self.maintenance is not None:
            from semel.worker.maintenance import EmbeddedMaintenance

            yield EmbeddedMaintenance(self, interval=self.maintenance)

    def bind(self, policy: Policy) -> Policy:
        """``policy`` with this guard's secrets for fingerprints, and its shape of refusals."""
        if not isinstance(policy, Policy):
            raise ConfigurationError(_no_policy(policy))
        # By id, since hashing a policy is work for every request; kept beside it, so that the id
        # stays its own.
        bound = self._bound.get(id(policy))
        if bound is None:
            if len(self._bound) >= MAX_BOUND:
                self._bound = {}  # started over: to bind one anew is little work
            bound = self._bound[id(policy)] = (policy, self._bind(policy))
            self._note(bound[1])
            if policy.retention < SHORTEST_RETENTION:
                log.warning("semel: retention=%s is under an hour", policy.retention)
        return bound[1]

    def _note(self, policy: Policy) -> None:
        """What adapters must look at, for the sake of a policy."""
        self.hides_runs |= policy.mode == "atomic" and policy.in_flight == "accept"
        self.reads_bodies |= policy.key_in_body
        names = policy.key_places.headers
        self.key_headers |= {name.encode() for name in names}
        self.environ_names |= {f"HTTP_{name.upper().replace('-', '_')}" for name in names}

    def _bind(self, policy: Policy) -> Policy:
        if policy.mode == "atomic" or policy.resumable:
            transactional(self.backend)
        if self._refusal is not None and policy.refusal is None:
            policy = replace(policy, refusal=self._refusal)
        if self._enforce == "shadow" and policy.enforce is None:
            policy = replace(policy, enforce=self._enforce)
        previous = self._bind(policy.previous) if policy.previous is not None else None
        if self._key_from is not None and policy.key_from is None:
            policy = replace(policy, key_from=self._key_from, previous=previous)
        if not self._secrets:
            return policy
        recipe = policy.fingerprint
        if not recipe.secrets:
            recipe = replace(recipe, secrets=self._secrets)
        return replace(policy, fingerprint=recipe, previous=previous)

    def __repr__(self) -> str:
        return f"<semel.Guard {self.backend.url} policy={self.policy.name}>"


_MEANT: Final = {
    **dict.fromkeys(("effect", "effects", "deliver"), '@guard.delivers("mail")'),
    "flask": "semel.frameworks.flask.install(app, guard)",
    "django": 'SEMEL_GUARD in the settings, and "semel.frameworks.django.SemelMiddleware"',
    "litestar": "on_app_init=[partial(semel.frameworks.litestar.install, guard=guard)]",
    **dict.fromkeys(("starlette", "middleware"), "guard.asgi(app)"),
}
"""Names that people look for on a guard."""


class _Absent:
    """What a guard has not: whoever looks for it is told what to write.

    A ``__getattr__`` would say so too, and make every attribute of a guard slower to read.
    """

    def __init__(self, name: str, meant: str) -> None:
        self._said = f"a semel.Guard has no {name!r}: write {meant}"

    def __get__(self, guard: object, owner: type) -> NoReturn:
        raise AttributeError(self._said)


for _name, _meant in _MEANT.items():
    setattr(Guard, _name, _Absent(_name, _meant))


def _backend(store: str | Backend, migrate: bool) -> Backend:
    if isinstance(store, str):
        options: dict[str, Any] = {"migrate": True} if migrate else {}
        return open_backend(store, **options)
    if isinstance(store, Backend):
        return store
    raise ConfigurationError(f"the store must be a URL or a backend, not {type(store).__name__}")


def _no_policy(given: Any) -> str:
    """What is wrong with a policy that is none."""
    named = getattr(given, "__name__", "")
    if given in (ietf, stripe, acp, accepted, payments, exempt):
        return f"policy= takes what {named}() returns, not the function: semel.{named}()"
    if callable(given):
        return "@guard.route needs a policy, in brackets: @guard.route(semel.ietf())"
    return f"policy= takes a policy, semel.ietf(), semel.payments() …, not {given!r}"


def _routes(routes: Any) -> Sequence[Route]:
    """The routes that were given, in the form they must have."""
    example = "routes=[semel.Route('POST', '/payments', semel.ietf())]"
    if isinstance(routes, Route) or not isinstance(routes, Sequence) or isinstance(routes, str):
        raise ConfigurationError(f"routes= takes a list of semel.Route: {example}")
    for route in routes:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(route, Route):
            found = type(route).__name__  # pyright: ignore[reportUnknownArgumentType]
            raise ConfigurationError(f"routes= takes semel.Route, not {found}: {example}")
    return routes  # pyright: ignore[reportUnknownVariableType]


def _duration(option: str, given: Any) -> timedelta:
    if isinstance(given, timedelta) and given >= timedelta(0):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        said = f"{option}= takes a timedelta, not a number: timedelta(seconds={given:g})"
        raise ConfigurationError(said)
    raise ConfigurationError(f"{option}= takes a timedelta, not {given!r}")


def _decorated(option: str, name: Any, example: str) -> str:
    """The name that a decorator was given; without one, Python hands it what it decorates."""
    if callable(name):
        raise ConfigurationError(f"{option} needs a name, in brackets: {example}")
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{option} takes a name, not {name!r}: {example}")
    return name


def _trace_link(template: str) -> TraceLink:
    from semel.operators.trace_link import TraceLink

    return TraceLink(template)


def _positive(given: timedelta | None, takes: str) -> timedelta | None:
    if given is not None and not (isinstance(given, timedelta) and given > timedelta(0)):
        raise ConfigurationError(f"{takes}, a timedelta, or None")
    return given


def _status(path: str) -> str:
    if not path.startswith("/") or path.endswith("/") or "?" in path:
        raise ConfigurationError(f"status={path!r} must be a path such as '/semel/status'")
    return path
