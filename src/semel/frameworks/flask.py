"""The Flask extension: keys are claimed at the view call, after Flask's own authentication.

``before_request`` functions have run by then, so ``tenant=`` sees whom they found; what they answer
themselves is not kept. ``after_request`` functions, the session and teardown run on every answer,
replays included: they are around the exchange, not in it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from semel.core.exchange.answers import Answer, Outcome
from semel.core.flow import run
from semel.core.frozen import replace
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.records import Headers, Request, Response
from semel.errors import ConfigurationError, SemelError
from semel.runtime.operation import fitting_operation, note, watched
from semel.runtime.transactions import Transact
from semel.web.body import Body, SpooledBody, reader, size_of
from semel.web.pipeline import refuse_awaiting
from semel.web.policy_in_force import demand_method
from semel.web.routes import Place, place, without_slash
from semel.web.tags import Tagged, any_tags, find_flask_tag, rule_path, tag, tagged_view
from semel.web.view_sync import Asked, Face, Parts, Stream, Views
from semel.web.wsgi import octets, read_body, request_of

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
    from semel.guard import Guard

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Semel", "operation", "session", "transaction"]

NAME: Final = "semel"
"""Of the extension among the application's."""
CLAIMS: Final = "__semel_claims__"
"""On a view that makes the claim itself, where `Semel.view` stands."""
_COPY: Final = "semel.copy"

operation: Any = LocalProxy(fitting_operation)
"""The running operation, as `semel.operation()` tells it."""
transaction: Any = LocalProxy(lambda: fitting_operation().transaction)
"""The open transaction, as a connection: in atomic mode that of the view, in a phase its own."""
session: Any = LocalProxy(lambda: fitting_operation().session)
"""The open transaction, as a SQLAlchemy session."""


class Semel:
    """Guards the views of Flask applications: ``Semel(app, guard)``, or ``init_app`` later."""

    def __init__(self, app: flask.Flask | None = None, guard: Guard | None = None) -> None:
        self._guard = guard
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask, guard: Guard | None = None) -> None:
        """Guard ``app``, by a guard of its own or by the one this extension was made with."""
        guard = guard or self._guard
        if guard is None or not hasattr(guard, "backend"):
            raise ConfigurationError("Semel(app, guard) needs a semel.Guard")
        if NAME in app.extensions:
            raise ConfigurationError(f"{app.name} is guarded already by a Semel extension")
        app.extensions[NAME] = Guarded(app, guard)

    def view(self, policy: Policy) -> Callable[[F], F]:
        """Claim where this stands, instead of around the whole view: below a login decorator."""
        if self._guard is not None:
            self._guard.bind(policy)

        def decorate(function: F) -> F:
            @wraps(function)
            def guarded(*arguments: Any, **named: Any) -> Any:
                return _guarded().decorated(policy, function, arguments, named)

            setattr(guarded, CLAIMS, True)
            return cast("F", tag(policy)(guarded))

        return decorate


def _guarded() -> Guarded:
    found = flask.current_app.extensions.get(NAME)
    if not isinstance(found, Guarded):
        name = flask.current_app.name
        raise ConfigurationError(f"{name} is not guarded: call init_app of its Semel extension")
    return found


class Guarded:
    """One application and its guard."""

    def __init__(self, app: flask.Flask, guard: Guard) -> None:
        refuse_awaiting(guard)
        self.app = app
        self.guard = guard
        guard.stand_around(app)
        self._face = _Face(app)
        self._views = _Views(guard, self._face, self._find)
        self._own: dict[Callable[..., Any], _Views] = {}
        self._dispatch = app.dispatch_request
        # Where Flask calls a view: behind all that is registered to run before, whenever it was.
        app.dispatch_request = self.dispatch  # type: ignore[method-assign]
        signals.request_started.connect(self._copy, app)
        app.add_url_rule(f"{guard.status}/<name>", "semel_status", self.status)

    def dispatch(self, *context: Any) -> Any:
        """Flask's own dispatch, as the handler of an exchange where the request takes part.

        ``context``: what later versions of Flask give it.
        """
        if self._stands_aside(flask.request):
            return self._dispatch(*context)
        return self._views.call(
            self._asked(), lambda: self._answered(lambda: self._dispatch(*context))
        )

    def decorated(
        self,
        policy: Policy,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        demand_method(function, policy, flask.request.method, self.guard.report_unguarded)
        views = self._own.get(function)
        if views is None:
            views = _Views(self.guard, self._face, lambda _, raw: Tagged(policy, _label(raw)))
            self._own[function] = views
        called = self.app.ensure_sync(function)
        return views.call(
            self._asked(), lambda: self._answered(lambda: called(*arguments, **named))
        )

    def status(self, name: str) -> flask.Response:
        """How a request that was accepted is doing: behind the application's authentication."""
        request, where = _told()
        flow = self._views.pipeline.status(request, where)
        if flow is None:
            flask.abort(404)
        return self._face.whole(run(flow, Transact(self.guard.backend).perform), None)

    def _answered(self, view: Callable[[], Any]) -> flask.Response:
        """What a view answers, or an error handler of the application's instead of it."""
        try:
            with watched():
                made = view()
            return self.app.make_response(made)
        except Exception as error:
            note(error)
            return self.app.make_response(cast("Any", self.app.handle_user_exception(error)))

    def _stands_aside(self, request: flask.Request) -> bool:
        """No view is called, or none that changes anything, or one that claims by itself."""
        if request.routing_exception is not None:
            return True
        # A key on a safe method may be refused.
        keyed = "HTTP_IDEMPOTENCY_KEY" in request.environ
        return (request.method in SAFE_METHODS and not keyed) or self._claims_itself(request)

    def _claims_itself(self, request: flask.Request) -> bool:
        view: Any = self.app.view_functions.get(request.endpoint or "")
        method = getattr(getattr(view, "view_class", None), request.method.lower(), None)
        return hasattr(view, CLAIMS) or hasattr(method, CLAIMS)

    def _find(self, app: Any, raw: Any) -> Tagged | None:
        if not any_tags():
            return None
        if isinstance(raw, flask.Request):
            return tagged_view(self.app, raw.url_rule, raw.method)
        return find_flask_tag(self.app, raw)

    # ── the request ───────────────────────────────────────────────────────────────────────────────

    def _copy(self, sender: object, **_: object) -> None:
        """Before anybody reads of the body: reading a form, as CSRF protection does, uses it up."""
        environ = flask.request.environ
        if "HTTP_IDEMPOTENCY_KEY" in environ and flask.request.method not in SAFE_METHODS:
            environ[_COPY] = environ["wsgi.input"] = Copied(environ["wsgi.input"])

    def _asked(self) -> Asked:
        request, where = _told()
        return Asked(request, where, flask.request.environ, _body)


def _told() -> tuple[Request, Place]:
    request = flask.request
    environ = request.environ
    where = place(octets(environ, "SCRIPT_NAME"), octets(environ, "PATH_INFO"))
    if request.url_rule is not None and not request.url_rule.strict_slashes:
        where = without_slash(where)
    raw = cast("Any", request)._get_current_object()
    return replace(request_of(environ, where.path), raw=raw), where


def _label(raw: Any) -> str:
    rule = raw.url_rule
    return f"{raw.method} {raw.path if rule is None else rule_path(rule)}"


def _body(policy: Policy) -> Body | Response:
    """All of the body, and the request as if nobody had read of it."""
    request = flask.request
    environ = request.environ
    _ = request.stream  # refuses what is over the application's own limit
    copy: Copied | None = environ.get(_COPY)
    body = read_body(policy, environ) if copy is None else copy.finish(policy, environ)
    if not isinstance(body, Response):
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = reader(body), str(size_of(body))
        request.__dict__.pop("stream", None)
    return body


class Copied(io.RawIOBase):
    """A request's body that is remembered as it is read."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._read = SpooledBody()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece: bytes = self._source.read(len(buffer))
        self._read.write(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    def finish(self, policy: Policy, environ: dict[str, Any]) -> Body | Response:
        """What was read of it, and the rest."""
        return read_body(policy, {**environ, "wsgi.input": self._source}, self._read)


# ── the response ──────────────────────────────────────────────────────────────────────────────────


class _Views(Views[flask.Response]):
    def _said(self, answer: Answer, made: flask.Response | None) -> flask.Response:
        """An exception that nobody handled goes on to Flask, unless it is kept as an answer.

        There it is logged, told of and torn down with, as in every other view; what semel itself
        raises has an answer of its own.
        """
        error, settled = answer.error, answer.outcome in (Outcome.RELEASED, Outcome.SUSPENDED)
        if answer.reraise and settled and not isinstance(error, SemelError) and error is not None:
            if made is not None:
                made.close()
            raise error
        return super()._said(answer, made)


class _Face(Face[flask.Response]):
    """Responses of one application's own class."""

    def __init__(self, app: flask.Flask) -> None:
        self._app = app

    def apart(self, response: flask.Response) -> Parts[Any]:
        # As a server would get it: files are opened, text is encoded, lengths are counted.
        environ = flask.request.environ
        pieces, _, headers = response.get_wsgi_response(environ)
        lines = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return Parts(response.status_code, lines, pieces)

    def whole(self, response: Response, made: flask.Response | None) -> flask.Response:
        if made is None:
            return self._made(response.status, response.headers, response.body)
        # The view's own object: what it is to do when it has been sent must not be lost. Its body
        # has been read.
        close = getattr(made.response, "close", None)
        if close is not None:
            close()
        made.status_code, made.headers = response.status, _lines(response.headers)
        made.direct_passthrough, made.response = False, [response.body]
        return made

    def flowing(
        self, status: int, headers: Headers, pieces: Stream[flask.Response]
    ) -> flask.Response:
        return self._made(status, headers, pieces)

    def close(self, response: flask.Response) -> None:
        response.close()

    def _made(self, status: int, headers: Headers, body: Any) -> flask.Response:
        answer = self._app.response_class(body, status)
        answer.headers = _lines(headers)  # these and no others: Werkzeug would add a Content-Type
        return answer


def _lines(headers: Headers) -> Lines:
    return Lines((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
