"""Flask: keys are claimed at the call of the view.

``before_request`` functions have run by then: ``tenant=`` sees whom they authenticated, and what
they answer themselves is not kept. ``after_request`` functions, the session and teardown run for
every answer, replays included: they are around the exchange, not in it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote

from semel.core.exchange.answers import Answer, Outcome
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.policy import SAFE_METHODS, Policy, exempt
from semel.core.records import Headers, Response
from semel.errors import ConfigurationError, SemelError
from semel.runtime.operation import current_run, fitting_operation, note, watched
from semel.runtime.transactions import Transact
from semel.stores.open_transactions import in_event_loop
from semel.web.body import Body, SpooledBody, reader, size_of
from semel.web.contract import told
from semel.web.pipeline import refuse_awaiting
from semel.web.routes import find_flask_tag, rule_path, tagged_view, without_slash
from semel.web.tags import Tagged, any_tags, demand_method, tag
from semel.web.views import GuardedViews, Parts, ResponseAdapter, ResponseParts, ViewRequest
from semel.web.wsgi import place_of, read_body, request_of

try:
    import flask
    from flask import signals
    from werkzeug.datastructures import Headers as Lines
    from werkzeug.local import LocalProxy
except ImportError as missing:
    raise ConfigurationError(
        "semel.frameworks.flask needs Flask: pip install 'semel[flask]'"
    ) from missing

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

    from semel.console import Console
    from semel.guard import Guard
    from semel.runtime.operation import Operation

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["guarded", "install", "join", "mount_console", "operation", "session", "transaction"]

NAME: Final = "semel"
"""The name of the guard among the application's extensions."""
CLAIMS: Final = "__semel_claims__"
"""On a view that makes the claim itself: it is `guarded`."""
_COPY: Final = "semel.copy"

operation = cast("Operation", LocalProxy(fitting_operation))
"""The running operation, as `semel.operation()` gives it. In an ``async def`` view it is an
`AsyncOperation`: there `semel.async_operation()` has the right type."""
transaction: Any = LocalProxy(lambda: fitting_operation().transaction)
"""The connection of the open transaction: of the view in atomic mode, or of a phase."""
session = cast("Session", LocalProxy(lambda: fitting_operation().session))
"""The open transaction, as a SQLAlchemy session."""


def install(app: flask.Flask, guard: Guard) -> None:
    """Guard the views of an application; in an application factory, each one that it makes."""
    if NAME in app.extensions:
        raise ConfigurationError(f"{app.name} is guarded already")
    app.extensions[NAME] = InstalledGuard(app, guard)


def mount_console(app: flask.Flask, console: Console, at: str) -> None:
    """Serve the console below the path ``at``, say ``/ops/semel``.

    ``authorize`` runs in Flask's own context, where ``flask.session`` and ``current_user`` are
    known; its ``request.raw`` is Flask's request. Forms of the console have no keys, and need none.
    """

    from semel.console.requests import MAX_BODY

    def show(below: str = "") -> flask.Response:
        asked = flask.request
        given = replace(request_of(asked.environ, place_of(asked.environ).path), raw=asked)
        body = asked.stream.read(MAX_BODY + 1) if asked.method == "POST" else b""
        answer = console.respond_to(given, quote(below, safe="/"), body)
        lines = [(name.decode("latin-1"), text.decode("latin-1")) for name, text in answer.headers]
        return flask.Response(answer.body, answer.status, lines)

    where, methods = at.rstrip("/"), ["GET", "HEAD", "OPTIONS", "POST"]
    given: dict[str, Any] = {"methods": methods, "provide_automatic_options": False}
    view = tag(exempt())(show)
    app.add_url_rule(f"{where}/", "semel-console", view, **given)
    app.add_url_rule(f"{where}/<path:below>", "semel-console", view, **given)


def guarded(guard: Guard, policy: Policy | None = None) -> Callable[[F], F]:
    """Claim keys where this stands, instead of around the whole view: below a login decorator.

    The application must be guarded by the same guard (`install`).
    """
    own = guard.policy if policy is None else policy
    guard.bind(own)  # what this guard cannot do is refused here, and not at every request

    def decorate(view: F) -> F:
        @wraps(view)
        def claimed(*arguments: Any, **named: Any) -> Any:
            app = flask.current_app
            found = app.extensions.get(NAME)
            if not isinstance(found, InstalledGuard) or found.guard is not guard:
                raise ConfigurationError(
                    f"{app.name} is not guarded by the guard of {view.__qualname__}: call "
                    "semel.frameworks.flask.install(app, guard)"
                )
            return found.call_decorated(own, view, arguments, named)

        setattr(claimed, CLAIMS, True)
        return cast("F", tag(own)(claimed))

    return decorate


def join(sessions: scoped_session[Any]) -> None:
    """Let a scoped session, ``db.session`` of Flask-SQLAlchemy, be part of open transactions.

    In an atomic view, and in a phase, it is the session of semel's transaction; elsewhere it is
    what it was. The guard's store must be the database that the models are in.
    """
    plain: Any = sessions.registry
    if isinstance(plain, JoiningRegistry):
        raise ConfigurationError("these sessions are joined already")
    sessions.registry = cast("Any", JoiningRegistry(plain))


class JoiningRegistry:
    """The registry of a scoped session. ``plain``: the one that it had."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.has, self.set, self.clear = plain.has, plain.set, plain.clear

    def __call__(self) -> Any:
        run = current_run()
        opened: Any = None if run is None else run.lease.transaction
        if opened is None:
            return self._plain()
        if in_event_loop():
            raise ConfigurationError(
                "this session blocks: in an async view of an atomic route use "
                "semel.async_operation().session"
            )
        joined = opened.session
        joined.semel_beside = self._plain() if self._plain.has() else None
        return joined


class InstalledGuard:
    """One application and its guard."""

    def __init__(self, app: flask.Flask, guard: Guard) -> None:
        self.app = app
        self.guard = guard
        self._responses = _FlaskResponses(app)
        self._views = _FlaskViews(guard, self._responses, self._find)
        refuse_awaiting(guard)
        guard.stand_around(app)
        self._own: dict[Callable[..., Any], _FlaskViews] = {}
        self._dispatch = app.dispatch_request
        # Where Flask calls a view: behind all that is registered to run before, whenever it was.
        app.dispatch_request = self.dispatch  # type: ignore[method-assign]
        signals.request_started.connect(self._copy, app)
        app.add_url_rule(f"{guard.status}/<name>", "semel_status", self.status)
        if guard.contract_at:
            app.add_url_rule(guard.contract_at, "semel_contract", self.contract)

    def dispatch(self, *context: Any) -> Any:
        """Flask's own dispatch, within an exchange if the request takes part.

        ``context``: what later versions of Flask pass to it.
        """
        request = flask.request
        # A key on a safe method may be refused, so such a request is looked at.
        keyed = not self.guard.environ_names.isdisjoint(request.environ)
        safe = request.method in SAFE_METHODS and not keyed
        view: Any = self.app.view_functions.get(request.endpoint or "")
        method = getattr(getattr(view, "view_class", None), request.method.lower(), None)
        claims_itself = hasattr(view, CLAIMS) or hasattr(method, CLAIMS)
        if request.routing_exception is not None or safe or claims_itself:
            return self._dispatch(*context)
        return self._views.call(_view_request(), lambda: self._response(self._dispatch, *context))

    def call_decorated(
        self,
        policy: Policy,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """Call a view that is `guarded` within an exchange."""
        demand_method(function, policy, flask.request.method, self.guard.report_unguarded)
        views = self._own.get(function)
        if views is None:

            def find(_: Any, raw: Any) -> Tagged:
                path = raw.path if raw.url_rule is None else rule_path(raw.url_rule)
                return Tagged(policy, f"{raw.method} {path}")

            views = self._own[function] = _FlaskViews(self.guard, self._responses, find)
        called = self.app.ensure_sync(function)
        return views.call(_view_request(), lambda: self._response(called, *arguments, **named))

    def status(self, name: str) -> flask.Response:
        """The state of an accepted request. The application's authentication has run."""
        given = _view_request()
        flow = self._views.pipeline.status(given.request, given.place)
        if flow is None:
            flask.abort(404)
        return self._responses.make(run(flow, Transact(self.guard.backend).perform), None)

    def contract(self) -> flask.Response:
        """What clients may rely on; at the root of the host, as its paths are."""
        if flask.request.environ.get("SCRIPT_NAME"):
            flask.abort(404)
        return self._responses.make(told(self.guard, self.app, flask.request.method), None)

    def _response(self, view: Callable[..., Any], *given: Any, **named: Any) -> flask.Response:
        """What the view returns, or what an error handler makes of its exception."""
        try:
            with watched():
                made = view(*given, **named)
            return self.app.make_response(made)
        except Exception as error:
            note(error)
            return self.app.make_response(cast("Any", self.app.handle_user_exception(error)))

    def _find(self, app: Any, raw: Any) -> Tagged | None:
        if not any_tags():
            return None
        if isinstance(raw, flask.Request):
            return tagged_view(self.app, raw.url_rule, raw.method)
        return find_flask_tag(self.app, raw)

    def _copy(self, sender: object, **_: object) -> None:
        """Remember the body as it is read: parsing a form, as CSRF protection does, uses it up."""
        environ, guard = flask.request.environ, self.guard
        keyed = guard.reads_bodies or not guard.environ_names.isdisjoint(environ)
        if keyed and flask.request.method not in SAFE_METHODS:
            environ[_COPY] = environ["wsgi.input"] = CopiedBody(environ["wsgi.input"])


def _view_request() -> ViewRequest:
    """The current request as semel reads it."""
    request = flask.request
    environ = request.environ
    where = place_of(environ)
    if request.url_rule is not None and not request.url_rule.strict_slashes:
        where = without_slash(where)
    raw = cast("Any", request)._get_current_object()
    return ViewRequest(
        replace(request_of(environ, where.path), raw=raw), where, environ, _read_body
    )


def _read_body(policy: Policy) -> Body | Response:
    """The whole body. The view can still read it from the request."""
    request = flask.request
    environ = request.environ
    _ = request.stream  # refuses what is over the application's own limit
    copy: CopiedBody | None = environ.get(_COPY)
    if copy is None:
        body = read_body(policy, environ)
    else:  # what was read of it, and the rest
        body = read_body(policy, {**environ, "wsgi.input": copy.source}, copy.read_so_far)
    if not isinstance(body, Response):
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = reader(body), str(size_of(body))
        request.__dict__.pop("stream", None)
    return body


class CopiedBody(io.RawIOBase):
    """A request body that is remembered as it is read."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.read_so_far = SpooledBody()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece: bytes = self.source.read(len(buffer))
        self.read_so_far.write(piece)
        buffer[: len(piece)] = piece
        return len(piece)


# ── the response ──────────────────────────────────────────────────────────────────────────────────


class _FlaskViews(GuardedViews[flask.Response]):
    def _spoken(self, answer: Answer) -> Response | None:
        """Raise what nobody handled, unless it is kept as an answer.

        Flask logs it and runs its teardown, as for every other view. What semel itself raises has
        an answer of its own.
        """
        error, settled = answer.error, answer.outcome in (Outcome.RELEASED, Outcome.SUSPENDED)
        if answer.reraise and settled and not isinstance(error, SemelError) and error is not None:
            raise error
        return super()._spoken(answer)


class _FlaskResponses(ResponseAdapter[flask.Response, Parts]):
    """Responses of the application's own class."""

    def __init__(self, app: flask.Flask) -> None:
        self._app = app

    def take_apart(self, response: flask.Response) -> Parts:
        # As a server gets it: files are opened, text is encoded, lengths are counted.
        pieces, _, headers = response.get_wsgi_response(flask.request.environ)
        lines = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return ResponseParts(response.status_code, lines, pieces)

    def make(self, response: Response, made: flask.Response | None) -> flask.Response:
        if made is None:
            return self.make_stream(response.status, response.headers, response.body)
        # The view's own object: what it is to do when it has been sent must not be lost. Its body
        # has been read.
        close = getattr(made.response, "close", None)
        if close is not None:
            close()
        made.status_code, made.headers = response.status, _lines(response.headers)
        made.direct_passthrough, made.response = False, [response.body]
        return made

    def make_stream(self, status: int, headers: Headers, pieces: Any) -> flask.Response:
        answer = self._app.response_class(pieces, status)
        answer.headers = _lines(headers)  # these and no others: Werkzeug would add a Content-Type
        return answer

    def close(self, response: flask.Response) -> None:
        response.close()


def _lines(headers: Headers) -> Lines:
    return Lines((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
