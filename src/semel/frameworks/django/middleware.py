"""`SemelMiddleware`: keys are claimed after Django's authentication, around the view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, cast

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
from semel.core.exchange.problems import ProblemResponse, refuse
from semel.core.flow import Flow, arun, run
from semel.core.policy import Policy
from semel.core.records import Response
from semel.errors import NotExecuted
from semel.frameworks.django import http, routes
from semel.guard import Guard
from semel.log import log
from semel.runtime.operation import current_run, returned
from semel.runtime.transactions import AsyncTransact, Transact
from semel.stores.django.backend import testing
from semel.web.contract import told
from semel.web.exchange import WebExchange, shaped
from semel.web.exchange_async import start_task
from semel.web.pipeline import OUTER, own_run, refuse_awaiting
from semel.web.request_events import tell_refusal
from semel.web.tags import NINJA
from semel.web.views import AsyncGuardedViews, GuardedViews, ViewRequest

SETTING: Final = "SEMEL_GUARD"
_CALLED: Final = "_semel_called"
"""On a request: its view was called, and has not raised."""
_UNDECORATED: Final = (
    "a view of Django REST framework authenticates by itself: put "
    "@semel.frameworks.django.guarded on its method, so that keys are claimed after that"
)


def guard_of_settings() -> Guard:
    """The guard that ``SEMEL_GUARD`` names, such as ``shop.guards.guard``."""
    named = getattr(settings, SETTING, None)
    if not isinstance(named, str):
        raise ImproperlyConfigured(f"{SETTING} must name a semel.Guard: 'shop.guards.guard'")
    found = import_string(named)
    if not isinstance(found, Guard):
        raise ImproperlyConfigured(f"{SETTING}: {named} is no semel.Guard")
    return found


class SemelMiddleware:
    """Guards the views of a project. In MIDDLEWARE it comes after AuthenticationMiddleware."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.guard = guard_of_settings()
        self._views = GuardedViews[HttpResponseBase](
            self.guard, http.DjangoResponses(), routes.find_django_tag
        )
        self._async_views = AsyncDjangoViews(
            self.guard, http.AsyncDjangoResponses(), routes.find_django_tag
        )
        self._is_async = routes.is_async(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        else:
            refuse_awaiting(self.guard)
        # Coroutines under ASGI: for a plain function Django would use a thread, for every request.
        # Django wants them bound.
        self.process_view: Any = self._process_view
        self.process_template_response: Any = self._note_unrendered
        if self._is_async:
            self.process_view = self._aprocess_view
            self.process_template_response = self._anote_unrendered

    def __call__(self, request: HttpRequest) -> Any:
        setattr(request, OUTER, current_run())
        if self._is_async:
            return self._acall(request)
        if self.guard.contract_at == request.path:
            return self._contract(request)
        if self.guard.status in request.path_info:
            given = http.view_request(request)
            flow = self._views.pipeline.status(given.request, given.place)
            if flow is not None:
                return _response(run(flow, Transact(self.guard.backend).perform))
        left = self._left_to_view(request)
        if isinstance(left, HttpResponseBase):
            return left
        if left is not None:
            with left:
                return self.get_response(request)
        if in_transaction():
            return _response(refuse("misconfigured"))

        def call_view() -> HttpResponseBase:
            http.rewind(request)
            try:
                return cast("HttpResponseBase", self.get_response(request))
            finally:
                _note_return(request)

        return self._views.call(http.view_request(request), call_view)

    def _contract(self, request: HttpRequest) -> HttpResponseBase:
        """What clients may rely on."""
        return _response(told(self.guard, BaseHandler(), request.method or ""))

    async def _acall(self, request: HttpRequest) -> Any:
        if self.guard.contract_at == request.path:
            return self._contract(request)
        if self.guard.status in request.path_info:
            flow = await self._status(http.view_request(request))
            if flow is not None:
                return _response(await arun(flow, AsyncTransact(self.guard.backend).perform))
        left = self._left_to_view(request)
        if isinstance(left, HttpResponseBase):
            return left
        if left is not None:
            with left:
                return await self.get_response(request)

        async def call_view() -> HttpResponseBase:
            http.rewind(request)
            try:
                return cast("HttpResponseBase", await self.get_response(request))
            finally:
                _note_return(request)

        return await self._async_views.call(http.view_request(request), call_view)

    async def _status(self, given: ViewRequest) -> Flow[Response] | None:
        pipeline = self._async_views.pipeline
        if pipeline.awaits:
            tenant = await pipeline.ask(given.request)
            return pipeline.status(given.request, given.place, tenant)
        return await sync_to_async(pipeline.status)(given.request, given.place)

    def _left_to_view(
        self, request: HttpRequest
    ) -> HttpResponseBase | AbstractContextManager[None] | None:
        """For a request whose claim is not made here, what its view is called in; else None.

        A response refuses a key for a view of REST framework without `guarded`, or of Django Ninja.
        Claimed here, its answers would be repeated to whoever knows a key. Ignored, the key would
        protect from nothing.
        """
        if http.takes_no_part(request, self.guard):
            return nullcontext()
        match = routes.resolve(request, request.path_info)
        setattr(request, http.SEEN, match)
        if match is None:
            return nullcontext()  # Django's own 404, or `_process_view` hears of it
        view, method = match.func, request.method or ""
        claimed = routes.claims_itself(view, method)
        if not claimed and not routes.authenticates_itself(view):
            return None
        policy = routes.policy_at(view, method) or self.guard.policy
        if not claimed:
            if method not in policy.methods or not self._keyed(request, policy):
                return nullcontext()
            if routes.allows_no(view, method) or self.guard.bind(policy).shadow:
                return nullcontext()
            why = NINJA if routes.is_ninja(view) else _UNDECORATED
            log.error("semel: %s: %s", match.view_name or match.route, why)
            return _response(refuse("misconfigured"))
        bound = self.guard.bind(policy)
        keyed = bound.key_in_body or not self.guard.environ_names.isdisjoint(request.META)
        refused = http.keep_body(request, bound) if keyed else None
        if refused is not None and not bound.shadow:
            label, events = routes.label_of(method, match), self.guard.events
            if isinstance(refused, ProblemResponse):
                tell_refusal(self.guard.runtime, Refusal(refused), policy, method, label)
            plan = self.guard.runtime.plan(label, bound)
            return _response(shaped(plan, refused, http.view_request(request).request, events))
        databases: set[str] = getattr(view, "_non_atomic_requests", set())
        if type(databases) is set:
            view._non_atomic_requests = _WhereClaimed(databases)
        return _transactions_within()

    def _process_view(
        self, request: HttpRequest, view: Any, arguments: Any, named: Any
    ) -> HttpResponseBase | None:
        """The view that answers must be the one whose policy was asked for.

        Middleware further in may have set ``request.urlconf`` or the language of the path: then
        nothing was claimed for this view, or not as its tag says.
        """
        method = request.method or ""
        seen = getattr(request, http.SEEN, request.resolver_match)
        if getattr(seen, "func", None) is view or routes.claims_itself(view, method):
            setattr(request, _CALLED, True)
            return None
        policy = routes.policy_at(view, method) or self.guard.policy
        if method not in policy.methods or not self._keyed(request, policy):
            return None
        log.error(
            "semel: middleware below semel.frameworks.django.SemelMiddleware changes which view "
            "answers %s: put it above, so that the key is claimed for that view",
            request.path,
        )
        self.process_exception(request, NotExecuted("another view was to answer"))
        return _response(refuse("misconfigured"))

    def _keyed(self, request: HttpRequest, policy: Policy) -> bool:
        """Whether a request has a key, needs one, or may have one in its body."""
        bound = self.guard.bind(policy)
        may_have = bound.required or not bound.key_header
        return may_have or not self.guard.environ_names.isdisjoint(request.META)

    def _note_unrendered(self, request: HttpRequest, response: HttpResponseBase) -> Any:
        """A view has returned a response that Django has yet to render."""
        return response if own_run(request) is None else returned(response)

    async def _aprocess_view(self, *given: Any) -> HttpResponseBase | None:
        return self._process_view(*given)

    async def _anote_unrendered(self, *given: Any) -> Any:
        return self._note_unrendered(*given)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Django, or another middleware, is about to turn it into an answer."""
        note_exception(request, exception)


def note_exception(request: HttpRequest, exception: BaseException) -> None:
    """The view of a request has raised: its run learns of it."""
    setattr(request, _CALLED, False)
    running = own_run(request)
    if running is not None:
        running.note(exception)


def _watch_exceptions() -> None:
    """Learn of exceptions before middleware nearer to the view answers them.

    Read in Django 5.2 and 6.1. Without it, `SemelMiddleware.process_exception` hears of the others.
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


_watch_exceptions()


def in_transaction() -> bool:
    """Whether a transaction is open around the guard, which could fail after the answer is kept.

    The transaction of a test case does not count: nothing of a test stays.
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


class _WhereClaimed(set[str]):
    """The databases whose ATOMIC_REQUESTS Django must not apply: all, where the view claims.

    One callable answers all methods of a class, and some may be `guarded`: those open the
    transaction inside the exchange.
    """

    def __contains__(self, alias: object) -> bool:
        return _within.get() or super().__contains__(alias)


_within: Final = ContextVar("semel_transactions_within", default=False)


@contextmanager
def _transactions_within() -> Generator[None]:
    """While a view runs that makes the claim itself."""
    token = _within.set(True)
    try:
        yield
    finally:
        _within.reset(token)


def _note_return(request: HttpRequest) -> None:
    """A view that was called and did not raise has returned, whatever came of that."""
    running = own_run(request)
    if running is not None and getattr(request, _CALLED, False):
        running.returned = True


def _response(response: Response) -> HttpResponseBase:
    return http.DjangoResponses().make(response, None)


class AsyncDjangoViews(AsyncGuardedViews[HttpResponseBase]):
    """Django's views in an event loop.

    An exchange has a task and a thread of its own, because Django ends those of a request with its
    client. Database connections belong to their thread: they are closed when it ends.
    """

    async def admit(self, ex: WebExchange) -> Response | bool:
        if self.pipeline.awaits or not ex.may_have_key():
            return await super().admit(ex)
        # ``request.user`` may be a question to the database.
        return await sync_to_async(self.pipeline.admit)(ex)

    async def call(
        self, given: ViewRequest, view: Callable[[], Awaitable[HttpResponseBase]]
    ) -> HttpResponseBase:
        task = start_task(self._call_in_own_thread(given, view), self.guard.runtime.running)
        return await asyncio.shield(task)

    async def _call_in_own_thread(
        self, given: ViewRequest, view: Callable[[], Awaitable[HttpResponseBase]]
    ) -> HttpResponseBase:
        context = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(context)  # in this task alone
        if not testing():  # a test's transaction is in its own thread
            AsyncToSync.executors.current = None
        try:
            return await super().call(given, view)
        finally:
            thread = SyncToAsync.context_to_thread_executor.pop(context, None)
            if thread is not None:
                await asyncio.get_running_loop().run_in_executor(thread, connections.close_all)
                thread.shutdown(wait=False)
