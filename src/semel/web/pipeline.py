"""What every adapter does alike before its application is called: find the policy, admit, open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from semel.core.exchange.admit import (
    Refusal,
    Tenant,
    add_body,
    admit,
    demand_payload,
    who_asks,
)
from semel.core.exchange.answers import Answer, Outcome, StatusCall, status
from semel.core.exchange.exchange import WorkerRun
from semel.core.exchange.problems import ProblemResponse, refuse
from semel.core.flow import Flow
from semel.core.frozen import is_async
from semel.core.policy import SAFE_METHODS, Policy, RoutePlan, ietf
from semel.core.records import Case, Identity, OnLapse, Request, Response
from semel.core.request.comparison import Prints
from semel.core.stored.requests import StoredRequest, carried, encode
from semel.core.terms import EVERY_ROUTE
from semel.errors import ConfigurationError
from semel.log import log
from semel.runtime.leases import new_fence
from semel.runtime.limits import protected
from semel.runtime.operation import Run, current_run
from semel.web.body import Body
from semel.web.exchange import WebExchange, shaped
from semel.web.framework_internals import watch_app, watch_fastapi
from semel.web.inventory import KnownRoutes
from semel.web.request_events import Account, tell_refusal
from semel.web.routes import Place, beneath, listed
from semel.web.shadow import NOT_WHOLE, cannot_be_named, let_pass
from semel.web.tags import DEFAULT, LEFT_OUT, LISTED, SAFE, Tagged, ruled_by
from semel.web.worker_runs import WORKER_RUN, find_worker_run

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.runtime.runtime import Runtime

FindTag: TypeAlias = Callable[[Any, Any], Tagged | None]
"""Asks an application's router for the tag of the endpoint that will answer a request."""

MARK: Final = "semel.identity"
"""Where a guard notes, in an ASGI scope or a WSGI environ, whose request it is running."""


class Pipeline:
    """The way of one guarded application's requests, as far as all adapters go it alike.

    The route's policy is found, the key and its owner are read (`admit`), the body is added
    (`open`); then the adapter drives the exchange.
    """

    def __init__(self, guard: Guard, app: Any, find_tag: FindTag) -> None:
        if not hasattr(guard, "backend"):
            raise ConfigurationError(f"guard= takes a semel.Guard, not {type(guard).__name__}")
        self.guard = guard
        self.app = app
        self._find_tag = find_tag
        self.awaits = is_async(guard.tenant)
        """Whether ``tenant=`` is a coroutine function: then it is asked beforehand (`ask`)."""
        self.sees_returns = _watch_frameworks(app)
        """Whether it would be heard if an endpoint returned and no answer could be made of that."""
        self._routes: KnownRoutes | None = None

    async def ask(self, request: Request) -> Tenant:
        """What ``tenant=`` says of this request, or raises, as a plain function."""
        tenant: Any = self.guard.tenant
        try:
            who = await tenant(request)
        except Exception as error:
            return partial(_raise, error)
        return lambda _: who

    def plan(self, runtime: Runtime, request: Request, place: Place) -> RoutePlan:
        """That of a listed route, else of a tag's, else of the default policy.

        Whose policy it is stays in the context, for the endpoint to see; adapters undo that.
        """
        guard = self.guard
        route = listed(guard.routes, request.method, place) if guard.routes else None
        if route is not None:
            ruled_by.set(_by(route.policy, request.method, LISTED))
            return runtime.plan(route.label, route.policy)
        tagged = self._find_tag(self.app, request.raw)
        if tagged is not None:
            ruled_by.set(_by(tagged.policy, request.method, tagged.policy))
            return runtime.plan(tagged.label, guard.bind(tagged.policy))
        ruled_by.set(DEFAULT)
        return runtime.plan(EVERY_ROUTE, guard.policy)

    def admit(self, ex: WebExchange, asked: Tenant = None) -> Response | bool:
        """Whether a request takes part, or a refusal. ``asked``: `ask`, where that is awaited."""
        admitted = admit(ex, asked or self.guard.tenant)
        if admitted is True:
            return admitted
        if ex.policy.shadow:
            return let_pass(ex, admitted)
        return self._turned_away(admitted, ex) if isinstance(admitted, Refusal) else admitted

    def look(self, ex: WebExchange, asked: Tenant, body: object) -> None:
        """Have a request without a key, of a route in shadow, compared with those from before."""
        counts, label = ex.runtime.shadow, ex.plan.label
        blocked = (self.awaits and asked is None) or not isinstance(body, bytes)
        who = Refusal if blocked else who_asks(ex.request, asked or self.guard.tenant)
        if not isinstance(body, bytes) or not isinstance(who, str):
            return counts.count(label, "not_looked_at")
        prints = Prints(ex.request, body, ex.policy.rule)
        return counts.look(label, ex.request.method, who, prints)

    def turned_away(self, response: Response, ex: WebExchange) -> Response | None:
        """The refusal of a body that cannot be taken, told like every other at the door.

        None: it is not refused but watched, and passes untouched.
        """
        if not isinstance(response, ProblemResponse):
            return response
        if ex.policy.shadow and response.problem.code not in NOT_WHOLE:
            let_pass(ex, Refusal(response))
            return None
        return self._turned_away(Refusal(response), ex)

    def _turned_away(self, refused: Refusal, ex: WebExchange) -> Response:
        tell_refusal(ex.runtime, refused, ex.policy, ex.request.method, ex.plan.label)
        return ex.in_its_shape(refused.response)

    def covers(self, ex: WebExchange, mark: object) -> bool:
        """Whether another guard around this one already runs this very request.

        It left its mark in the scope or environ. The mark alone would not do: whoever sends the
        same scope through again is not inside that run any more.
        """
        run = current_run()
        return run is not None and run.lease.identity == mark == ex.identity

    def open(self, ex: WebExchange, place: Place, body: Body, raw: Any) -> Answer | None:
        """Add what the body means; an answer where it is known without the store."""
        guard, policy = self.guard, ex.policy
        if guard.events.heard:
            ex.account = Account(guard.events)
        ex.body = body
        try:
            add_body(ex, body, new_fence())
            if policy.stores_request:
                # An operation's calls have probes by their names.
                ex.can_ask = ex.can_ask or (policy.resumable and bool(guard.registry.probes))
                ex.stored = _stored(ex, place)
            if policy.in_flight == "accept":
                ex.status_at = place.root + guard.status
            if policy.prepares or not isinstance(body, bytes):
                # Now, in this thread: a large body may take long, and a function may fail.
                ex.prints.prepare()
                if ex.older is not None:
                    ex.older.prints.prepare()
                unread = demand_payload(ex) if policy.payload else None
                if unread is not None:
                    return self._not_there(ex, unread)
        except Exception as error:  # fingerprint= may be the operator's own function
            failed = Answer(ex.refusal("misconfigured"), Outcome.MISCONFIGURED, error)
            if policy.shadow:
                cannot_be_named(ex, failed)
                return None
            ex.tell(failed, at_once=True)
            return failed
        ex.seen_before = ex.runtime.seen_keys.meet(ex.identity)
        if type(raw) is not dict or WORKER_RUN in raw:
            worker = find_worker_run(raw)
            if worker is not None:
                return self._adopt(ex, worker)
        return ex.opened()

    def _not_there(self, ex: WebExchange, refused: ProblemResponse) -> Answer | None:
        """What ``payload_from=`` names is not in the body."""
        if ex.policy.shadow:
            cannot_be_named(ex, Answer(refused, Outcome.MISCONFIGURED))
            return None
        return Answer(self._turned_away(Refusal(refused), ex), Outcome.INTERRUPTED)

    def status(self, request: Request, place: Place, asked: Tenant = None) -> Flow[Response] | None:
        """How a request that was accepted is doing; None where the address names none."""
        prefix = self.guard.status + "/"
        if not place.below.startswith(prefix) or request.method not in ("GET", "HEAD"):
            return None
        # Now, by the caller: ``tenant=`` may have to be asked in a thread.
        who = who_asks(request, asked or self.guard.tenant)
        return self._status(request, place, who, place.below.removeprefix(prefix))

    def _status(
        self, request: Request, place: Place, who: str | Refusal, name: str
    ) -> Flow[Response]:
        guard, identity = self.guard, _identity(name)
        if isinstance(who, Refusal):
            tell_refusal(guard.runtime, who, guard.policy, request.method, guard.status + "/")
            answer: Response = who.response
        elif identity is None:
            answer = refuse("no-such-operation")
        else:
            call = StatusCall(
                identity=identity,
                tenant=who,
                address=f"{place.root}{place.below}",
                accept_encoding=request.headers.get("accept-encoding"),
                cross_origin="origin" in request.headers,
                hidden=guard.hides_runs,
            )
            answer = yield from protected(guard.runtime, who, status(call, self._policy_of))
        # In the guard's shape: of a record that is not there no route is known.
        plan = guard.runtime.plan(EVERY_ROUTE, guard.policy)
        return shaped(plan, answer, request, guard.events)

    def _policy_of(self, case: Case) -> Policy | None:
        """That of a record's route, if it is one of this application's."""
        if case.terms is None or case.terms.application != self.guard.name:
            return None
        if self._routes is None:
            self._routes = KnownRoutes(self.guard, self.app)
        return self._routes.policy(case.terms) or _UNKNOWN_ROUTE

    def _adopt(self, ex: WebExchange, worker: WorkerRun) -> Answer | None:
        """Make it a worker's run of a stored request; refused when it is not the request it was.

        Whoever authentication says it is now, or the settings, make another key of it; and what
        another route answers, or the same in another mode, is not what was accepted.
        """
        made, record, terms = worker.case.terms, worker.case.record, ex.plan.terms
        older, ex.older = ex.older, None
        if older is not None and older.identity == record.identity:
            ex.identity, ex.prints = older.identity, older.prints
        same = made is not None and (made.route, made.mode) == (terms.route, terms.mode)
        # Begun as an operation, it would be run from its start.
        changed = record.on_lapse is OnLapse.RESUME and not ex.policy.resumable
        if not same or ex.identity != record.identity or changed:
            return Answer(ex.refusal("no-such-operation"), Outcome.INTERRUPTED)
        tagged = self._find_tag(self.app, ex.request.raw)
        worker.tells = tagged is not None and tagged.tells
        worker.reached = True
        ex.worker, ex.fence, ex.stored = worker, worker.fence, None
        return ex.opened()


_UNKNOWN_ROUTE: Final = ietf()
"""How the status of a request is told whose route another version of the application has."""


def _by(policy: Policy, method: str, by: object) -> object:
    """``by``, where the policy takes the method; middleware further in may make it another one."""
    if method in policy.methods:
        return by
    return SAFE if method in SAFE_METHODS else LEFT_OUT


def _identity(name: str) -> Identity | None:
    try:
        identity = bytes.fromhex(name)
    except ValueError:
        return None
    return Identity(identity) if len(identity) == 32 and identity.hex() == name else None


def _stored(ex: WebExchange, place: Place) -> bytes:
    request, policy, body = ex.request, ex.policy, ex.body
    principal = ex.tenant if policy.principal is None else policy.principal(request)
    return encode(
        StoredRequest(
            method=request.method,
            root=place.root,
            path=beneath(request.escaped, place.root) or place.below,
            query=request.query,
            headers=carried(request.headers, (*policy.carry, *policy.key_places.headers)),
            body=body if isinstance(body, bytes) else body.whole(),
            key=ex.sent,
            principal=principal,
            scheme=_scheme(request.raw),
        )
    )


def _scheme(raw: Any) -> str:
    """By which the caller came: an application may send those of one to the other."""
    asgi: Any = getattr(raw, "scope", raw)
    for place in (asgi, getattr(raw, "environ", None), getattr(raw, "META", None)):
        if isinstance(place, Mapping):
            told: Any = place.get("scheme") or place.get("wsgi.url_scheme")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            if told in ("http", "https"):
                return str(told)
    return "http"


def _raise(error: Exception, _: Request) -> NoReturn:
    raise error


def refuse_awaiting(guard: Guard) -> None:
    """Refuse a guard whose ``tenant=`` must be awaited, where nothing is."""
    if is_async(guard.tenant):
        raise ConfigurationError(
            "tenant= is a coroutine function, which only ASGI awaits: give a plain one here"
        )


def spoken(answer: Answer) -> Response | None:
    """What is sent, in a thread of the server's own; the handler's exception where nothing is."""
    error = answer.error
    if error is not None and answer.reraise:
        if answer.response is None or not isinstance(error, Exception):
            raise error
        log.error("semel: a handler raised", exc_info=error)
    return answer.response


def demand_application(app: Any, adapter: str) -> None:
    """Refuse what is no application, or one for the other adapter: it would fail when called."""
    example = f"guard.{adapter}(app)"
    if isinstance(app, type):
        raise ConfigurationError(f"{example} takes an application, not the class {app.__name__}")
    if not callable(app):
        raise ConfigurationError(f"{example} takes an application, not {type(app).__name__}")
    kind = type(app).__name__
    if adapter == "asgi" and hasattr(app, "wsgi_app"):
        raise ConfigurationError(
            f"{kind} is a WSGI application: semel.frameworks.flask.install(app, guard), or "
            "guard.wsgi(app)"
        )
    if adapter == "wsgi" and is_async(app):
        raise ConfigurationError(f"{kind} is an ASGI application: guard.asgi(app)")


def _watch_frameworks(app: Any) -> bool:
    """Hear of exceptions from frameworks that answer them after their ``except`` block.

    And of endpoints that return; False where that cannot be told.
    """
    for name in ("flask.signals", "quart.signals", "django.core.signals"):
        signals: Any = sys.modules.get(name)
        if signals is not None:
            signals.got_request_exception.connect(_note_exception)
    if app is None:
        return True  # a framework's own adapter, which calls views itself
    watch_app(app)
    return watch_fastapi()


def _note_exception(
    sender: object, exception: BaseException | None = None, request: object = None, **_: object
) -> None:
    run, error = own_run(request), exception or sys.exception()
    if run is not None and error is not None:
        run.note(error)


OUTER: Final = "_semel_outer"
"""On a request of Django's: the run of whoever makes it, in this process, while it is made."""


def own_run(request: object) -> Run | None:
    """The run that a request is for; not that of a view which makes this request by itself."""
    run = current_run()
    return None if run is getattr(request, OUTER, None) else run
