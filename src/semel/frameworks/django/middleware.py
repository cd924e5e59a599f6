"""The middleware: keys are claimed after Django's authentication, around the view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from asgiref.sync import (
    AsyncToSync,
    SyncToAsync,
    ThreadSensitiveContext,
    markcoroutinefunction,
    sync_to_async,
)
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from semel.core.exchange.admit import Refusal
from semel.core.exchange.problems import refuse
from semel.core.flow import Flow, arun, run
from semel.core.policy import Policy
from semel.core.records import Request, Response
from semel.errors import NotExecuted
from semel.frameworks.django.requests import SEEN, RequestBody, asked, rewind, takes_no_part
from semel.frameworks.django.responses import AwaitedDjangoFace, DjangoFace
from semel.frameworks.django.routes import (
    authenticates_itself,
    claims_itself,
    find_django_tag,
    is_async,
    is_ninja,
    label_of,
    policy_at,
    resolved,
)
from semel.guard import Guard
from semel.log import log
from semel.runtime.operation import current_run, returned
from semel.runtime.transactions import AsyncTransact, Transact
from semel.stores.django.database import testing
from semel.web.exchange import WebExchange
from semel.web.exchange_async import start_task
from semel.web.pipeline import OUTER, own_run, refuse_awaiting
from semel.web.request_events import tell_refusal
from semel.web.routes import Place
from semel.web.tags import NINJA
from semel.web.view_async import AwaitedViews
from semel.web.view_sync import Asked, Views

SETTING: Final = "SEMEL_GUARD"


def guard_of_settings() -> Guard:
    """The guard that ``SEMEL_GUARD`` names, such as ``shop.guards.guard``."""
    named = getattr(settings, SETTING, None)
    if not isinstance(named, str):
        raise ImproperlyConfigured(f"{SETTING} must name a semel.Guard: 'shop.guards.guard'")
    found = import_string(named)
    if not isinstance(found, Guard):
        raise ImproperlyConfigured(f"{SETTING}: {named} is no semel.Guard")
    return found


class Middleware:
    """Guards the views of a project. In MIDDLEWARE it comes after AuthenticationMiddleware."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.guard = guard_of_settings()
        self._views = Views[HttpResponseBase](self.guard, DjangoFace(), find_django_tag)
        self._awaited = DjangoViews(self.guard, AwaitedDjangoFace(), find_django_tag)
        self._is_async = is_async(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        else:
            refuse_awaiting(self.guard)
        # In its own colour: for one of the other Django would use a thread, for every request.
        self.process_view: Any = self._aprocess_view if self._is_async else self._process_view
        self.process_template_response: Any = self._areturned if self._is_async else self._returned

    def __call__(self, request: HttpRequest) -> Any:
        setattr(request, OUTER, current_run())
        if self._is_async:
            return self._acall(request)
        if self.guard.status in request.path_info:
            flow = self._views.pipeline.status(*_told(request))
            if flow is not None:
                return _made(run(flow, Transact(self.guard.backend).perform))
        if takes_no_part(request) or (refused := self._left_to_view(request)) is PASS:
            return self.get_response(request)
        if refused is CLAIMS:
            with _transactions_within():
                return self.get_response(request)
        if refused is not None:
            return refused
        if in_transaction():
            return _made(refuse("misconfigured"))
        return self._views.call(asked(request), lambda: self._answered(request))

    def _answered(self, request: HttpRequest) -> HttpResponseBase:
        rewind(request)
        try:
            response: HttpResponseBase = self.get_response(request)
        finally:
            _note_return(request)
        return response

    async def _acall(self, request: HttpRequest) -> Any:
        if self.guard.status in request.path_info:
            flow = await self._status(*_told(request))
            if flow is not None:
                return _made(await arun(flow, AsyncTransact(self.guard.backend).perform))
        if takes_no_part(request) or (refused := self._left_to_view(request)) is PASS:
            return await self.get_response(request)
        if refused is CLAIMS:
            with _transactions_within():
                return await self.get_response(request)
        if refused is not None:
            return refused

        async def answered() -> HttpResponseBase:
            rewind(request)
            try:
                response: HttpResponseBase = await self.get_response(request)
            finally:
                _note_return(request)
            return response

        return await self._awaited.call(asked(request), answered)

    async def _status(self, request: Request, place: Place) -> Flow[Response] | None:
        pipeline = self._awaited.pipeline
        if pipeline.awaits:
            return pipeline.status(request, place, await pipeline.ask(request))
        return await sync_to_async(pipeline.status)(request, place)

    def _left_to_view(self, request: HttpRequest) -> Any:
        """CLAIMS where the view makes the claim itself; a refusal where it would have to."""
        match = resolved(request)
        setattr(request, SEEN, match)
        if match is None:
            return PASS  # Django's own 404, or `_process_view` hears of it
        method = request.method or ""
        if claims_itself(match.func, method):
            policy = policy_at(match.func, method) or self.guard.policy
            body = None
            if "HTTP_IDEMPOTENCY_KEY" in request.META:
                body = RequestBody(request).keep(policy)
            if body is None:
                _leave_open(match.func)
                return CLAIMS
            label = label_of(method, match)
            tell_refusal(self.guard.events, Refusal(body), policy, method, label)
            return _made(body)
        if authenticates_itself(match.func):
            return self._unclaimed(request, match)
        return None

    def _unclaimed(self, request: HttpRequest, match: Any) -> Any:
        """A view of Django REST framework's that nobody decorated, or one of Django Ninja's.

        Claimed here, its answers would be repeated to whoever knows a key; ignored, a key would
        protect from nothing.
        """
        method = request.method or ""
        policy = policy_at(match.func, method) or self.guard.policy
        if method not in policy.methods or not _keyed(request, policy):
            return PASS
        why = NINJA if is_ninja(match.func) else _UNDECORATED
        log.error("semel: %s: %s", match.view_name or match.route, why)
        return _made(refuse("misconfigured"))

    def _process_view(
        self, request: HttpRequest, view: Any, arguments: Any, named: Any
    ) -> HttpResponseBase | None:
        """The view that answers must be the one whose policy was asked for.

        Middleware further in may have set ``request.urlconf`` or the language of the path: then
        nothing was claimed for this view, or not as its tag says.
        """
        method = request.method or ""
        seen = getattr(request, SEEN, request.resolver_match)
        if getattr(seen, "func", None) is view or claims_itself(view, method):
            setattr(request, _CALLED, True)
            return None
        policy = policy_at(view, method) or self.guard.policy
        if method not in policy.methods or not _keyed(request, policy):
            return None
        log.error(
            "semel: middleware below semel.frameworks.django.Middleware changes which view "
            "answers %s: put it above, so that the key is claimed for that view",
            request.path,
        )
        self.process_exception(request, NotExecuted("another view was to answer"))
        return _made(refuse("misconfigured"))

    async def _aprocess_view(self, *given: Any) -> HttpResponseBase | None:
        return self._process_view(*given)

    def _returned(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """A view has returned a response that Django has yet to render."""
        return response if own_run(request) is None else returned(response)

    async def _areturned(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        return self._returned(request, response)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Django, or another middleware, is about to turn it into an answer."""
        note_exception(request, exception)


def note_exception(request: HttpRequest, exception: BaseException) -> None:
    setattr(request, _CALLED, False)
    running = own_run(request)
    if running is not None:
        running.note(exception)


def _hear_first() -> None:
    """Hear of exceptions before middleware nearer to the view answers them.

    Read in Django 5.2 and 6.1. Without it, `Middleware.process_exception` hears of the others.
    """
    plain: Any = getattr(BaseHandler, "process_exception_by_middleware", None)
    if plain is None or hasattr(plain, "__semel_watched__"):
        return

    @wraps(plain)
    def process_exception_by_middleware(self: Any, exception: Any, request: Any) -> Any:
        note_exception(request, exception)
        return plain(self, exception, request)

    made: Any = process_exception_by_middleware
    made.__semel_watched__ = True
    setattr(BaseHandler, "process_exception_by_middleware", made)  # noqa: B010


_hear_first()


def in_transaction() -> bool:
    """Whether one is open around the guard, so that its commit may fail after the answer is kept.

    That of a test case is not: nothing of a test is to stay.
    """
    if current_run() is not None:
        return False  # within another guarded view, whose transaction it may be
    for wrapper in connections.all(initialized_only=True):
        blocks: list[Any] = wrapper.atomic_blocks
        if any(not block._from_testcase for block in blocks):
            log.error(
                "semel: a transaction is open around a guarded view: leave it out, or put "
                "@transaction.non_atomic_requests on the view where ATOMIC_REQUESTS opened it (it "
                "holds within)"
            )
            return True
    return False


def _keyed(request: HttpRequest, policy: Policy) -> bool:
    return "HTTP_IDEMPOTENCY_KEY" in request.META or policy.required


class _WhereClaimed(set[str]):
    """The databases whose ATOMIC_REQUESTS do not hold around a view; all, where it claims.

    One callable answers all methods of a class, of which some may be `guarded`: those hold the
    transaction within.
    """

    def __contains__(self, alias: object) -> bool:
        return _within.get() or super().__contains__(alias)


_within: Final = ContextVar("semel_transactions_within", default=False)


def _leave_open(view: Any) -> None:
    told: set[str] = getattr(view, "_non_atomic_requests", set())
    if type(told) is set:
        view._non_atomic_requests = _WhereClaimed(told)


@contextmanager
def _transactions_within() -> Generator[None]:
    token = _within.set(True)
    try:
        yield
    finally:
        _within.reset(token)


_UNDECORATED: Final = (
    "a view of Django REST framework authenticates by itself: put "
    "@semel.frameworks.django.guarded on its method, so that keys are claimed after that"
)
_CALLED: Final = "_semel_called"
"""On a request: its view was called, and has not raised."""


def _note_return(request: HttpRequest) -> None:
    """A view that was called and did not raise has returned, whatever came of that."""
    running = own_run(request)
    if running is not None and getattr(request, _CALLED, False):
        running.returned = True


PASS: Final = object()
"""The request goes on untouched."""
CLAIMS: Final = object()
"""The view makes the claim itself."""


def _told(request: HttpRequest) -> tuple[Any, Any]:
    given = asked(request)
    return given.request, given.place


def _made(response: Response) -> HttpResponseBase:
    return DjangoFace().whole(response, None)


class DjangoViews(AwaitedViews[HttpResponseBase]):
    """In an event loop: what belongs to threads stays in one thread for the whole exchange."""

    async def admit(self, ex: WebExchange) -> Response | bool:
        if self.pipeline.awaits or "idempotency-key" not in ex.request.headers:
            return await super().admit(ex)
        # ``request.user`` may be a question to the database.
        return await sync_to_async(self.pipeline.admit)(ex)

    async def call(
        self, asked: Asked, view: Callable[[], Awaitable[HttpResponseBase]]
    ) -> HttpResponseBase:
        """In a task and a thread of its own: Django ends those of a request with its client."""
        return await asyncio.shield(
            start_task(self._apart(asked, view), self.guard.runtime.running)
        )

    async def _apart(
        self, asked: Asked, view: Callable[[], Awaitable[HttpResponseBase]]
    ) -> HttpResponseBase:
        context = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(context)  # in this task alone
        if not testing():  # a test's transaction is in its own thread
            AsyncToSync.executors.current = None
        try:
            return await super().call(asked, view)
        finally:
            thread = SyncToAsync.context_to_thread_executor.pop(context, None)
            if thread is not None:
                # Connections belong to their thread, which ends here.
                await asyncio.get_running_loop().run_in_executor(thread, connections.close_all)
                thread.shutdown(wait=False)
