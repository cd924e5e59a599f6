"""The console of one guard: from a request to a response, for ASGI and for WSGI servers.

Everything between the two ends is plain functions: `answer` takes a request and a user and returns
a response. The ASGI end and the WSGI end only read the request, ask who sends it, and hand the work
to the console's own threads. So no page exists twice, and the console brings no framework along.

Those threads are few. A screen may read thousands of records; the threads and connections of the
application's own requests are not to wait for that. Whoever finds too many waiting is told to come
again.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.console import responses
from semel.console.acts import ActPage
from semel.console.budget import WorkBudget
from semel.console.cache import Cache
from semel.console.login import LOGIN, LOGOUT, LoginPages
from semel.console.render import render, static_files
from semel.console.requests import (
    MAX_BODY,
    METHODS,
    READS,
    ConsoleRefusal,
    ConsoleRequest,
    check_host,
    check_site,
)
from semel.console.roles import Authorize, ConsoleUser, Role, checked
from semel.console.routes import SCREENS, find
from semel.console.view import Action, Redirect, Screen, View
from semel.core.frozen import is_async
from semel.core.records import Request, Response
from semel.core.texts import one_line
from semel.errors import ConfigurationError, SemelError, StoreError
from semel.log import log
from semel.operators.approvals import TwoPersonRule, two_person_rule
from semel.operators.operator import Operator
from semel.operators.trace_link import TraceLink
from semel.runtime.flow_runner import call
from semel.web.asgi import asked
from semel.web.asgi_exchange import Receive, Scope, Send, send_response
from semel.web.wsgi import Environ, StartResponse, place_of, request_of, send_body

if TYPE_CHECKING:
    from semel.guard import Guard

T = TypeVar("T")

THREADS: Final = 2
"""Pages that are made at once, in one process."""
WAITING: Final = 32
"""Requests that wait for a thread; more are told to come again."""
SHARE: Final = 0.1
"""Of the time, in which a mounted console makes pages: the rest is the application's."""
_TURN_WITHIN: Final = 30.0
"""Seconds that a page waits for its turn; whoever has waited longer is told why."""
_SHARED: Final = 2.0
"""Seconds for which a page is shown to others with the same role."""
BLOCKED: Final = 2 * THREADS
"""Threads of a WSGI server that may wait for the console: the others are the application's."""
FORM_WITHIN: Final = 30.0
"""Seconds in which a form must have come: who sends it slowly holds a connection."""
_PATIENCE: Final = 30.0
"""Seconds that an ``authorize`` coroutine may take under a WSGI server."""


class Console:
    """An ASGI application to mount anywhere; ``console.wsgi`` is the same for WSGI servers.

    - ``authorize``: says who sends a request, a `ConsoleUser` or None. It may be a coroutine
      function. What it raises is a refusal.
    - ``app``: the application around which the guard stands, for its routes and their policies.
    - ``hosts``: the names under which the console answers; None: the application has checked.
    - ``two_person``: the acts that a second person must approve: ``"all"``, or some of ``evict``,
      ``free``, ``absent``, ``erase`` and ``drop``. None needs a second person unless it is said.
    - ``trace_url``: the search of the tracing system, where it is not the guard's `TraceLink`.
    - ``work_share``: for what share of the time it may make pages, which hold up requests of the
      same process. None: always, in a process of its own.
    - ``login``: the pages on which people log in to a standalone console.
    """

    def __init__(
        self,
        guard: Guard,
        authorize: Authorize,
        *,
        app: Any = None,
        hosts: Iterable[str] | None = None,
        two_person: TwoPersonRule | str | Collection[str] | None = None,
        login: LoginPages | None = None,
        trace_url: str | None = None,
        work_share: float | None = SHARE,
    ) -> None:
        if work_share is not None and not 0 < work_share <= 1:
            raise ConfigurationError("work_share= is a share of the time: more than 0, at most 1")
        if not callable(authorize):
            raise ConfigurationError(
                "the console needs authorize=, a function of the request that returns "
                "semel.console.ConsoleUser(name, roles), or None"
            )
        self._guard = guard
        self._authorize = authorize
        self._app = app
        self._hosts = None if hosts is None else frozenset(each.lower() for each in hosts)
        self._rule = two_person_rule(two_person)
        self._login = login
        self._traces = guard.trace_link if trace_url is None else TraceLink(trace_url)
        self._cache, self._pages = Cache(), Cache()
        self._budget = WorkBudget(work_share)
        self._pools: dict[int, _Threads] = {}

    # ── servers ───────────────────────────────────────────────────────────────────────────────────

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1003})
        where, request = asked(scope)
        bare = not where.below.strip("/") and not str(scope["path"]).endswith("/")

        try:
            body = await _read_within(receive) if request.method == "POST" else b""
            given = _request(request, where.below, bare, where.root, body)
        except ConsoleRefusal as refusal:
            return await send_response(_unread(refusal), send)
        return await send_response(_for_method(request, await self._arespond(given)), send)

    def wsgi(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The same for a WSGI server: Flask, Django, or any dispatcher by path."""
        where = place_of(environ)
        request = request_of(environ, where.path)
        bare = not environ.get("PATH_INFO")

        try:
            body = _read_wsgi(environ) if request.method == "POST" else b""
            given = _request(request, where.below, bare, where.root, body)
        except ConsoleRefusal as refusal:
            return send_body(_unread(refusal), start_response)
        return send_body(_for_method(request, self.respond(given)), start_response)

    def respond_to(self, request: Request, below: str, body: bytes) -> Response:
        """The same for a framework that has taken its request apart. ``below``: the path below the
        mount, percent-encoded, without its first slash."""
        try:
            if len(body) > MAX_BODY:
                raise ConsoleRefusal(413, "The form is too large.")
            given = ConsoleRequest(request, below, False, "", body)
        except ConsoleRefusal as refusal:
            return _unread(refusal)
        return _for_method(request, self.respond(given))

    async def _arespond(self, given: ConsoleRequest) -> Response:
        try:
            if not _needs_user(given):
                return self.answer(given, None)
            user = await self._aask(given.request)
            since = time.monotonic()
            running = self._threads().run(lambda: self._in_turn(given, user, since))
        except ConsoleRefusal as refusal:
            return self._refused(given, None, refusal)
        return await asyncio.wrap_future(running)

    def respond(self, given: ConsoleRequest) -> Response:
        """Ask who it is, and answer; blocking, for adapters of frameworks that use threads."""
        try:
            if not _needs_user(given):
                return self.answer(given, None)
            user = self._ask(given.request)
            since = time.monotonic()
            running = self._threads().run(lambda: self._in_turn(given, user, since), BLOCKED)
            return running.result()
        except ConsoleRefusal as refusal:
            return self._refused(given, None, refusal)

    def _in_turn(self, given: ConsoleRequest, user: ConsoleUser | None, since: float) -> Response:
        """The response, made within the console's share of this process. An act need not wait: it
        may be urgent, or wait for a provider itself."""
        if given.method == "POST":
            return self.answer(given, user)
        if time.monotonic() - since < _TURN_WITHIN:
            return self._budget.run(lambda: self.answer(given, user))
        said = (
            "More people look at the console than its share of this process is enough for: "
            "requests come first. Come again in a moment, or run semel console as a process of its "
            "own."
        )
        return self._refused(given, user, ConsoleRefusal(503, said, _AGAIN))

    def _threads(self) -> _Threads:
        """Those of this process: a forked child has none of its parent's."""
        pid = os.getpid()
        return self._pools.get(pid) or self._pools.setdefault(pid, _Threads())

    # ── who sends it ──────────────────────────────────────────────────────────────────────────────

    async def _aask(self, request: Request) -> ConsoleUser | None:
        try:
            if is_async(self._authorize):
                returned: Any = self._authorize(request)
            else:
                authorize = self._authorize
                threads = self._threads()
                returned = await asyncio.wrap_future(threads.run(lambda: authorize(request)))
            return checked(await returned if inspect.isawaitable(returned) else returned)
        except ConsoleRefusal:
            raise
        except Exception:
            raise _not_asked() from None

    def _ask(self, request: Request) -> ConsoleUser | None:
        try:
            if is_async(self._authorize):
                return checked(call(_PATIENCE, self._authorize, request))
            return checked(self._authorize(request))
        except ConsoleRefusal:
            raise
        except Exception:
            raise _not_asked() from None

    # ── what is answered ──────────────────────────────────────────────────────────────────────────

    def answer(self, given: ConsoleRequest, user: ConsoleUser | None) -> Response:
        """The response to one request of one user; blocking."""
        try:
            check_host(given.request, self._hosts)
            if given.bare:
                return responses.redirect(f"./{given.mount}/" if given.mount else "./")
            if given.path.startswith("static/"):
                return _static(given)
            if self._login is None:
                return self._page(given, user)
            own = self._login.respond(given)
            if own is None and user is None and given.method in READS and not given.wants_json:
                own = responses.redirect(given.url(LOGIN))
            return own or self._login.renewed(given.request, self._page(given, user))
        except ConsoleRefusal as refusal:
            return self._refused(given, user, refusal)
        except StoreError as error:
            refused = ConsoleRefusal(503, f"The store cannot be used: {error}")
        except SemelError as error:
            refused = ConsoleRefusal(409, f"{error}")
        except Exception:
            log.exception("semel: a page of the console failed: %s", one_line(given.path))
            refused = ConsoleRefusal(500, "This page failed. The application's log says why.")
        return self._refused(given, user, refused)

    def _page(self, given: ConsoleRequest, user: ConsoleUser | None) -> Response:
        if user is None or user.highest is None:
            raise ConsoleRefusal(403, "You are not logged in as somebody who may use the console.")
        if given.method not in METHODS:
            raise ConsoleRefusal(405, "The console knows GET, HEAD and POST.", _allow(METHODS))
        found, named = find(given.path, given.method)
        if given.method == "OPTIONS":
            return responses.response(204, "text/plain", b"", _allow(found.methods))
        if given.method not in found.methods:
            raise ConsoleRefusal(405, "That is not done in this way.", _allow(found.methods))
        if isinstance(found, Action):
            check_site(given.request)
        if not user.may(found.role):
            said = f"This needs the role {found.role.value}; you are {user.highest.value}."
            raise ConsoleRefusal(403, said)
        known = (self._guard, self._app, self._operator)
        apart = self._threads().apart
        view = View(given, user, *known, named, self._rule, self._cache, apart, self._traces)
        if isinstance(found, Action):
            try:
                return self._shown(view, found, found.run(view))
            finally:
                self._pages.forget()  # what it has changed is seen at once
        if not found.shared or given.wants_json:
            return self._shown(view, found, found.run(view))
        name = given.path, given.request.query, user.highest
        below = self._pages.get(name, _SHARED, lambda: self._below(view, found, found.run(view)))
        return responses.page(200, self._top(view, found) + below)

    def _shown(self, view: View, found: Screen | Action, data: Any) -> Response:
        """Data as a page, or as JSON; a response that a screen made by itself is a file."""
        given = view.request
        if isinstance(data, Response):
            return data
        if isinstance(data, Redirect):
            return responses.redirect(given.url(data.to, data.query))
        status = data.status if isinstance(data, ActPage) else 200
        if given.wants_json:
            return responses.document(status, data)
        return responses.page(status, self._top(view, found) + self._below(view, found, data))

    def _top(self, view: View, found: Screen | Action) -> str:
        frame = self._frame(view.request, view.user)
        return render("top.html", title=found.title, here=found.path, **frame)

    def _below(self, view: View, found: Screen | Action, data: Any) -> str:
        """The page below its top: nothing in it may depend on who looks, but for the role."""
        frame = {**self._frame(view.request, view.user), "user": None}
        refresh = found.refresh if isinstance(found, Screen) else 0
        own = {"title": found.title, "refresh": refresh, "data": data}
        return render(found.template, **frame, **own)

    def _refused(
        self, given: ConsoleRequest, user: ConsoleUser | None, refusal: ConsoleRefusal
    ) -> Response:
        status, text, headers = refusal.status, refusal.text, refusal.headers
        if given.wants_json:
            problem = {"title": text, "status": status}
            return responses.document(status, problem, headers, problem=True)
        frame = self._frame(given, user if user is None or user.highest else None)
        top = render("top.html", **frame, title=str(status), here=None)
        below = render("refused.html", **frame, refresh=0, status=status, text=text)
        return responses.page(status, top + below, headers)

    def _frame(self, given: ConsoleRequest, user: ConsoleUser | None) -> dict[str, Any]:
        """What every template is given."""
        menu = [each for each in SCREENS if each.menu and user is not None and user.may(each.role)]

        def url(to: str = "", **query: Any) -> str:
            return given.url(to, query)

        def again(**changes: Any) -> str:
            """A link to this page with other filters; a changed filter begins at the first page."""
            return given.url(given.path, {**given.query, "after": None, **changes})

        def may(role: str) -> bool:
            return user is not None and user.may(Role(role))

        return {
            "menu": menu,
            "user": user,
            "may": may,
            "url": url,
            "again": again,
            "query": given.query,
            "path": given.path,
            "logout": None if self._login is None else LOGOUT,
        }

    @cached_property
    def _operator(self) -> Operator:
        """It reads the routes of the application, once."""
        return Operator(self._guard, self._app)


def _static(given: ConsoleRequest) -> Response:
    """A file of ours. It says nothing about anybody, and is served to everybody."""
    found = static_files().get(given.path.removeprefix("static/"))
    if found is None or given.method not in READS:
        raise ConsoleRefusal(404, "There is no such file.")
    kind, content, tag = found
    headers = (("ETag", f'"{tag}"'),)
    fresh = given.request.headers.get("if-none-match") == f'"{tag}"'
    cache = "no-cache"
    return responses.response(
        304 if fresh else 200, kind, b"" if fresh else content, headers, cache
    )


# ── reading requests ──────────────────────────────────────────────────────────────────────────────


def _needs_user(given: ConsoleRequest) -> bool:
    return not given.bare and not given.path.startswith("static/")


def _request(request: Request, below: str, bare: bool, root: str, body: bytes) -> ConsoleRequest:
    return ConsoleRequest(request, below.removeprefix("/"), bare, root.rpartition("/")[2], body)


def _allow(methods: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return (("Allow", ", ".join(methods)),)


def _unread(refusal: ConsoleRefusal) -> Response:
    """A refusal of a request that could not be read: nobody knows what page it is about."""
    kind, text = "text/plain; charset=utf-8", f"{refusal.text}\n"
    return responses.response(refusal.status, kind, text.encode(), refusal.headers)


def _not_asked() -> ConsoleRefusal:
    """``authorize`` failed: what it would have said is unknown, so nobody is let in."""
    log.warning("semel: authorize= of the console raised; nobody is let in", exc_info=True)
    return ConsoleRefusal(403, "Who you are could not be found out; the log says why.")


async def _read_within(receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(FORM_WITHIN):
            return await _read(receive)
    except TimeoutError:
        raise ConsoleRefusal(408, "The form came too slowly.", _CLOSE) from None


_CLOSE: Final = (("Connection", "close"),)


async def _read(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ConsoleRefusal(400, "The request was not sent to its end.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise ConsoleRefusal(413, "The form is too large.", _CLOSE)
    return bytes(body)


def _read_wsgi(environ: Environ) -> bytes:
    stated = str(environ.get("CONTENT_LENGTH") or "")
    if not stated.isascii() or not stated.isdigit():
        raise ConsoleRefusal(411, "The length of the form is not said.")
    if len(stated) > 9 or int(stated) > MAX_BODY:
        raise ConsoleRefusal(413, "The form is too large.", _CLOSE)
    body: bytes = environ["wsgi.input"].read(int(stated))
    if len(body) < int(stated):
        raise ConsoleRefusal(400, "The request was not sent to its end.")
    return body


def _for_method(request: Request, answer: Response) -> Response:
    """HEAD gets the head of what GET would get."""
    return Response(answer.status, answer.headers, b"") if request.method == "HEAD" else answer


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


_AGAIN: Final = (("Retry-After", "5"),)


class _Threads:
    """The console's threads in one process, and how many wait for one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "semel-console")
        self._waiting = 0
        self._turn = threading.Lock()
        self._room = threading.Semaphore(WAITING)

    def run(self, function: Callable[[], T], most: int = WAITING) -> Future[T]:
        """Run it in a thread, in the caller's context. The count may be off by one: no lock."""
        if self._waiting >= most:
            raise ConsoleRefusal(503, "Too many people look at the console at once.", _AGAIN)
        self._waiting += 1
        future = self._pool.submit(copy_context().run, function)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self._waiting -= 1

    def apart(self, function: Callable[[], object]) -> bool:
        """Run what takes long in a thread of its own, one after the other: no page waits for it,
        and a process that ends does not. False: too many wait for that already."""

        def work() -> None:
            try:
                with self._turn:
                    function()
            except Exception:
                log.exception("semel: an act of the console broke off")
            finally:
                self._room.release()

        if not self._room.acquire(blocking=False):
            return False
        context = copy_context()
        threading.Thread(
            target=context.run, args=(work,), name="semel-console-act", daemon=True
        ).start()
        return True
