"""What every adapter does alike: find the policy, admit the request, hold the lease, log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from semel.core.admission import Call, Refused, Tenant, Ticket, admit, who_asks
from semel.core.answers import Answer, Outcome
from semel.core.contract import (
    Applied,
    Claim,
    Claimed,
    Fetched,
    Found,
    Operation,
    Resume,
    Retake,
    StoreOperation,
)
from semel.core.exchange import exchange, execute
from semel.core.flow import Flow
from semel.core.frozen import frozen, is_async, replace
from semel.core.keys import mask
from semel.core.model import Case, Identity, OnLapse, Request, Response
from semel.core.policy import SAFE_METHODS, Policy, ietf
from semel.core.prints import LARGE
from semel.core.problems import refuse
from semel.core.runner import Commit, Invoke, Raised
from semel.core.status import StatusCall, answered, status
from semel.core.stored import StoredRequest, carried, encode
from semel.core.terms import Terms, TermsId
from semel.errors import ConfigurationError, NotExecuted
from semel.log import log
from semel.process.clock import lease_clock
from semel.process.current import Ground, Run, current_run
from semel.process.fences import new_fence
from semel.process.leases import Lease
from semel.web.accounts import Account, tell_refusal
from semel.web.errands import Errand, find_errand
from semel.web.framework_internals import watch_app, watch_fastapi
from semel.web.known_routes import KnownRoutes
from semel.web.message import Spool
from semel.web.protection import Fare, at_once, protected
from semel.web.routing import Place, beneath, listed
from semel.web.ruling import DEFAULT, LEFT_OUT, LISTED, SAFE, ruled_by
from semel.web.tags import Tagged

if TYPE_CHECKING:
    from semel.guard import Guard

FindTag: TypeAlias = Callable[[Any, Any], Tagged | None]
"""Asks an application's router for the tag of the endpoint that will answer a request."""

MARK: Final = "semel.identity"
"""Where a guard notes, in an ASGI scope or a WSGI environ, whose request it is running."""


@frozen
class Opened:
    """An exchange that can be driven; ``errand``: by a worker, who holds the record already."""

    call: Call
    flow: Flow[Answer]
    errand: Errand | None

    @property
    def started(self) -> float | None:
        """When a worker asked for the lease."""
        return None if self.errand is None else self.errand.started


class Desk:
    """The front desk of one guarded application."""

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

    def admit(
        self, request: Request, place: Place, asked: Tenant = None
    ) -> tuple[Ticket | Refused | None, str]:
        """Whether a request takes part, and the label of the route whose policy says so.

        ``asked``: `ask`, where that must be awaited.
        """
        return self.admit_under(request, *self.ruling(request, place), asked)

    def admit_under(
        self, request: Request, policy: Policy, label: str, asked: Tenant = None
    ) -> tuple[Ticket | Refused | None, str]:
        """The same for a request whose policy was found before."""
        ticket = admit(request, policy, asked or self.guard.tenant, self.guard.name)
        if isinstance(ticket, Refused):
            tell_refusal(self.guard.events, ticket, policy, request.method, label)
        elif ticket is not None and ticket.suspicious:
            self.guard.events.emit("key.suspicious", route=label, key=mask(ticket.key))
        return ticket, label

    def turned_away(self, response: Response, ticket: Ticket, label: str) -> Response:
        """The refusal of a body that cannot be taken, told like every other at the door."""
        method = ticket.request.method
        tell_refusal(self.guard.events, Refused(response), ticket.policy, method, label)
        return response

    def ruling(self, request: Request, place: Place) -> tuple[Policy, str]:
        """The policy, and its label: of a listed route, else a tag's, else the default.

        Whose it is stays in the context, for the endpoint to see; adapters undo that.
        """
        policy, label, by = self._ruling(request, place)
        ruled_by.set(by)
        return policy, label

    def _ruling(self, request: Request, place: Place) -> tuple[Policy, str, object]:
        route = listed(self.guard.routes, request.method, place)
        if route is not None:
            return route.policy, route.label, _by(route.policy, request.method, LISTED)
        tagged = self._find_tag(self.app, request.raw)
        if tagged is not None:
            by = _by(tagged.policy, request.method, tagged.policy)
            return self.guard.bind(tagged.policy), tagged.label, by
        return self.guard.policy, "*", DEFAULT

    def covers(self, ticket: Ticket, mark: object) -> bool:
        """Whether another guard around this one already runs this very request.

        It left its mark in the scope or environ. The mark alone would not do: whoever sends the
        same scope through again is not inside that run any more.
        """
        run = current_run()
        if run is None or run.lease.identity != mark:
            return False
        return ticket.identity(ticket.policy) == mark

    def open(
        self, ticket: Ticket, place: Place, label: str, body: Spool, raw: Any
    ) -> Opened | Answer:
        """The exchange of an admitted request; an answer where it is known without one."""
        account = Account(self.guard.events, ticket, label)
        terms = self.guard.terms(label, ticket.policy)
        call = self._call(ticket, place, body, terms.id)
        if isinstance(call, Answer):
            return account.at_once(call)
        errand = find_errand(raw)
        if errand is None:
            known = at_once(self.guard, call)
            if isinstance(known, Answer):
                return account.at_once(known, call)
            call = known
            enrolled = self.guard.enrol(label, ticket.policy, terms)
            return Opened(call, account.follow(call, exchange(call, enrolled)), None)
        adopted = self._adopt(call, errand, terms, ticket.request)
        if adopted is None:
            return Answer(refuse("no-such-operation"), Outcome.INTERRUPTED)
        held = Claimed(0, 0, errand.case.record.created_at, again=True)
        flow = execute(adopted, held)
        return Opened(adopted, account.follow(adopted, flow), errand)

    def _call(self, ticket: Ticket, place: Place, body: Spool, terms: TermsId) -> Call | Answer:
        """Add what the body means, with a fence made before the first try."""
        try:
            call = ticket.call(body, new_fence(), self.guard.familiar.meet, terms)
            call = self._complete(call, ticket, place, body)
            older = () if call.predecessor is None else (call.predecessor.prints,)
            for prints in (call.prints, *older):
                if body.size >= LARGE or prints.chosen:
                    prints.prepare()  # now, in this thread, where it may fail or take long
            return call
        except Exception as error:  # fingerprint= may be the operator's own function
            return Answer(refuse("misconfigured"), Outcome.MISCONFIGURED, error)

    def _complete(self, call: Call, ticket: Ticket, place: Place, body: Spool) -> Call:
        """Add what only some routes need."""
        policy = call.policy
        can_ask = call.can_ask or self._names_probes(policy)
        if not (can_ask or policy.stores_request or policy.in_flight == "accept"):
            return call
        request = _stored(ticket, place, body) if policy.stores_request else None
        status_at = place.root + self.guard.status
        return replace(call, can_ask=can_ask, request=request, status_at=status_at)

    def status(self, request: Request, place: Place, asked: Tenant = None) -> Flow[Response] | None:
        """How a request that was accepted is doing; None where the address names none."""
        prefix = self.guard.status + "/"
        name = place.below.removeprefix(prefix)
        if not place.below.startswith(prefix) or request.method not in ("GET", "HEAD"):
            return None
        identity = _identity(name)
        who = who_asks(request, asked or self.guard.tenant)
        if isinstance(who, Refused):
            tell_refusal(self.guard.events, who, self.guard.policy, request.method, prefix)
            return answered(who.response)
        if identity is None:
            return answered(refuse("no-such-operation"))
        call = StatusCall(
            identity=identity,
            tenant=who,
            address=f"{place.root}{place.below}",
            accept_encoding=request.headers.get("accept-encoding"),
            cross_origin="origin" in request.headers,
            hidden=self.guard.hides_runs,
        )
        return protected(self.guard, who, status(call, self._policy_of))

    def _policy_of(self, case: Case) -> Policy | None:
        """That of a record's route, if it is one of this application's."""
        if case.terms is None or case.terms.application != self.guard.name:
            return None
        if self._routes is None:
            self._routes = KnownRoutes(self.guard, self.app)
        return self._routes.policy(case.terms) or _UNKNOWN_ROUTE

    def _names_probes(self, policy: Policy) -> bool:
        """An operation's calls have probes by their names."""
        return policy.lapse is OnLapse.RESUME and bool(self.guard.registry.probes)

    def _adopt(self, call: Call, errand: Errand, terms: Terms, request: Request) -> Call | None:
        """A worker's run of a stored request; None when it is not the request it was.

        Whoever authentication says it is now, or the settings, make another key of it; and what
        another route answers, or the same in another mode, is not what was accepted.
        """
        made = errand.case.terms
        if made is None or (made.route, made.mode) != (terms.route, terms.mode):
            return None
        record = errand.case.record
        older = call.predecessor
        if older is not None and older.identity == record.identity:
            call = replace(call, identity=older.identity, prints=older.prints, predecessor=None)
        if call.identity != record.identity:
            return None
        if record.on_lapse is OnLapse.RESUME and not call.resumable:
            return None  # begun as an operation, it would be run from its start
        errand.reached = True
        tagged = self._find_tag(self.app, request.raw)
        return replace(
            call,
            fence=errand.fence,
            alone=True,
            overdue=errand.overdue,
            last=errand.last,
            tells=tagged is not None and tagged.tells,
            requeue=errand.requeue,
            request=None,
        )


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


def _stored(ticket: Ticket, place: Place, body: Spool) -> bytes:
    request, policy = ticket.request, ticket.policy
    principal = ticket.tenant if policy.principal is None else policy.principal(request)
    return encode(
        StoredRequest(
            method=request.method,
            root=place.root,
            path=beneath(request.escaped, place.root) or place.below,
            query=request.query,
            headers=carried(request.headers, tuple(policy.carry)),
            body=body.whole(),
            key=ticket.sent,
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


_ASKS_FOR_A_LEASE: Final = (Claim, Retake, Resume, Commit)


class Performer:
    """Performs the operations of one keyed request: what both colours do alike."""

    __slots__ = (
        *("_fare", "_found", "_guard", "_lease", "_made", "_request", "_run"),
        *("begun", "call"),
    )

    def __init__(
        self, guard: Guard, ticket: Ticket, call: Call, started: float | None = None
    ) -> None:
        self._guard = guard
        self._request = ticket.request
        policy = call.policy
        lease, max_run = policy.lease_micros / 1_000_000, policy.max_run.total_seconds()
        now = lease_clock() if started is None else started
        self._lease = Lease(call.identity, call.fence, now, lease, max_run)
        self.begun = False
        """The handler was asked for: there is a lease to let go, and a handler to see off."""
        self._run: Run | None = None
        self._found: Found | None = None
        self._made = 0.0 if guard.replays is None else guard.replays.clock()
        self.call = call
        limiter = guard.limiter
        self._fare = None if limiter is None or call.alone else Fare(limiter, call)

    def _begin(self, op: Invoke) -> Run | None:
        """From here on the lease is renewed; None when it is too late to begin.

        A process that was stopped between claim and run may find its record settled by others.
        """
        if not self.begun and not self._held():
            return None
        self.begun = True
        self._lease.identity = op.identity  # it may be alive under the previous settings
        if self._run is None:
            self._run = Run(self._lease, op.course, self._ground(), op.created_at)
        if self.call.policy.mode == "atomic":
            self._lease.is_transaction()
        self._guard.attendant.hold(self._lease)
        return self._run

    def _ground(self) -> Ground:
        guard, call = self._guard, self.call
        # Nothing of this exchange: a circle would leave every request to the garbage collector.
        probes = guard.registry.probes
        kind = (call.resumable, call.policy.mode == "atomic")
        store = (guard.backend, guard.name)
        return Ground(*store, call.origin, *kind, probes, call.policy.probe)

    def _before(self, op: Operation[Any]) -> None:
        """A lease is counted from before it is asked for, and anew when it is asked for again.

        In a transaction it has no end; a commit in doubt is looked after as long as one would last.
        """
        if isinstance(op, Commit):
            self.let_go()
        if isinstance(op, _ASKS_FOR_A_LEASE):
            self._lease.start(lease_clock())
        if self._fare is not None and not self.begun:
            self._fare.before(op)

    def _heard(self, reply: object) -> None:
        """The store has answered."""
        if self._guard.breaker is not None:
            self._guard.breaker.succeeded()
        if self._fare is not None and not self.begun:
            self._fare.after(reply)

    def _unheard(self, asked: float) -> None:
        """The store gave no answer to what it was asked then."""
        if self._guard.breaker is not None:
            self._guard.breaker.failed(asked)

    def _tell(self, op: StoreOperation[Any], reply: object) -> None:
        """Those who wait for this record learn at once that it has changed."""
        if op.finishing and isinstance(reply, Applied):
            self._guard.attendant.settled(self._lease.identity)
        if self._guard.replays is not None:
            self._remember(reply)

    def _remember(self, reply: object) -> None:
        """What was read may be repeated for a while; a large answer once it was fetched."""
        if isinstance(reply, Found):
            self._found = reply
        elif isinstance(reply, Fetched) and self._found is not None:
            record = replace(self._found.record, snapshot=reply.snapshot)
            reply = replace(self._found, record=record)
        if isinstance(reply, Found) and self._guard.replays is not None:
            self._guard.replays.note(reply, self._made)

    def _held(self) -> bool:
        return self._lease.held(lease_clock())

    def let_go(self) -> None:
        """The lease is no longer renewed."""
        self._guard.attendant.let_go(self._lease)


def too_late() -> Raised:
    """The outcome of a handler that was not begun."""
    return Raised(NotExecuted("the lease had passed before the handler could begin"))


_TELL_OF_EXCEPTIONS: Final = ("flask.signals", "quart.signals", "django.core.signals")


def _watch_frameworks(app: Any) -> bool:
    """Hear of exceptions from frameworks that answer them after their ``except`` block.

    And of endpoints that return; False where that cannot be told.
    """
    for name in _TELL_OF_EXCEPTIONS:
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
