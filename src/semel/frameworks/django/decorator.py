"""`guarded`: keys are claimed where it stands, for views that authenticate by themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.handlers.exception import response_for_exception
from django.db import connections, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from semel.core.exchange.problems import refuse
from semel.core.policy import SAFE_METHODS, Policy
from semel.frameworks.django import http
from semel.frameworks.django.middleware import AsyncDjangoViews, in_transaction
from semel.frameworks.django.routes import CLAIMS, is_async, label_of
from semel.runtime.operation import note, watched
from semel.web.pipeline import refuse_awaiting
from semel.web.tags import Tagged, demand_method, tag
from semel.web.views import GuardedViews

if TYPE_CHECKING:
    from semel.guard import Guard

V = TypeVar("V", bound=Callable[..., Any])

Demand = Callable[[str | None], None]
"""Refuses a method that the policy leaves out."""

_HANDLERS: Final = (
    *("post", "put", "patch", "delete"),
    *("create", "update", "partial_update", "destroy"),
)
"""Methods of a class that may change something; the second row are a viewset's."""
_ENTERED: Final = "_semel_entered"
"""On a request: its guarded view is running."""
_BY_CLASS: Final = "__semel_by_class__"
"""On a method that claims because its class is decorated: by whose guard and policy."""


def guarded(guard: Guard, policy: Policy | None = None) -> Callable[[V], V]:
    """Claim keys where this stands: on a view, on a method of a class, or on a class.

    For views of Django REST framework, which authenticate when they are called, and below
    decorators that do so, such as ``login_required``.
    """
    bound = guard.policy if policy is None else guard.bind(policy)

    def decorate(view: V) -> V:
        wrap = _guard_class if isinstance(view, type) else _guard_view
        return cast("V", wrap(guard, bound, cast("Any", view)))

    return decorate


def _guard_class(guard: Guard, policy: Policy, kind: type) -> type:
    """Guard the handlers of a class, and those that its subclasses write in their place."""
    _wrap_handlers(guard, policy, kind)
    base: Any = kind
    theirs: Any = kind.__dict__.get("__init_subclass__")

    def init_subclass(made: type, /, **named: Any) -> None:
        if theirs is None:
            super(base, made).__init_subclass__(**named)
        else:
            theirs.__get__(None, made)(**named)
        _wrap_handlers(guard, policy, made)

    base.__init_subclass__ = classmethod(init_subclass)
    return tag(policy)(kind)


def _wrap_handlers(guard: Guard, policy: Policy, kind: type) -> None:
    """Guard ``dispatch``; in REST framework, where that authenticates, each handler instead.

    A method with `guarded` of its own keeps it; the nearest class that is decorated counts.
    """
    rest = hasattr(kind, "perform_authentication")
    for name in sorted(_handlers(kind)) if rest else ["dispatch"]:
        method: Any = getattr(kind, name, None)
        by_class = getattr(method, _BY_CLASS, None)
        if by_class == (guard, policy) or method is None:
            continue
        if by_class is None and hasattr(method, CLAIMS):
            continue
        inner = method if by_class is None else method.__wrapped__
        made = _guard_view(guard, policy, inner, by_class=True)
        setattr(made, _BY_CLASS, (guard, policy))
        setattr(kind, name, made)


def _handlers(kind: type) -> set[str]:
    """The methods that may change something: by name, and those that ``@action`` marks."""
    names = set(_HANDLERS)
    for each in dir(kind):
        mapping: Any = getattr(getattr(kind, each, None), "mapping", None)
        if isinstance(mapping, Mapping):
            methods = cast("Mapping[str, str]", mapping)
            names |= {name for verb, name in methods.items() if verb.upper() not in SAFE_METHODS}
    return names


def _guard_view(
    guard: Guard, policy: Policy, view: Callable[..., Any], *, by_class: bool = False
) -> Callable[..., Any]:
    """A view, or a method of one, that claims keys.

    ``by_class``: its class is decorated, whose policy may leave methods out.
    """

    def demand(method: str | None) -> None:
        if not by_class:
            demand_method(view, policy, method, guard.report_unguarded)

    def find_tag(app: Any, raw: Any) -> Tagged:
        return Tagged(policy, label_of(raw.method, raw.resolver_match))

    if is_async(view):
        views = AsyncDjangoViews(guard, http.AsyncDjangoResponses(), find_tag)
        made: Any = _guard_coroutine(views, view, demand)
    else:
        refuse_awaiting(guard)
        made = _guard_function(
            GuardedViews[HttpResponseBase](guard, http.DjangoResponses(), find_tag), view, demand
        )
    setattr(made, CLAIMS, guard)
    made._non_atomic_requests = _EVERY
    return cast("Callable[..., Any]", tag(policy)(made))


def _guard_function(
    views: GuardedViews[HttpResponseBase], view: Callable[..., Any], demand: Demand
) -> Callable[..., Any]:
    @wraps(view)
    def claimed(*arguments: Any, **named: Any) -> Any:
        request = _request(arguments)
        if hasattr(http.plain(request), _ENTERED):
            return view(*arguments, **named)
        demand(request.method)
        if http.takes_no_part(http.plain(request), views.guard):
            return _atomic(view)(*arguments, **named)
        if in_transaction():
            return http.DjangoResponses().make(refuse("misconfigured"), None)
        atomic_view = _atomic(view)

        def call_view() -> HttpResponseBase:
            http.rewind(request)
            try:
                with _entered(request), watched():
                    response = atomic_view(*arguments, **named)
                return _rendered(request, response)
            except Exception as error:
                note(error)
                return _for_exception(request, error)

        return views.call(http.view_request(request), call_view)

    return claimed


def _guard_coroutine(views: Any, view: Callable[..., Any], demand: Demand) -> Callable[..., Any]:
    @wraps(view)
    async def claimed(*arguments: Any, **named: Any) -> Any:
        request = _request(arguments)
        if hasattr(http.plain(request), _ENTERED):
            return await view(*arguments, **named)
        demand(request.method)
        if http.takes_no_part(http.plain(request), views.guard):
            return await view(*arguments, **named)

        async def call_view() -> HttpResponseBase:
            http.rewind(request)
            try:
                with _entered(request), watched():
                    response = await view(*arguments, **named)
                return await sync_to_async(_rendered)(request, response)
            except Exception as error:
                note(error)
                return await sync_to_async(_for_exception, thread_sensitive=False)(request, error)

        return await views.call(http.view_request(request), call_view)

    return claimed


def _request(arguments: tuple[Any, ...]) -> Any:
    """The first argument that is a request: a method has its view before it."""
    return next(it for it in arguments if isinstance(http.plain(it), HttpRequest))


# ── what the view answers ─────────────────────────────────────────────────────────────────────────


@contextmanager
def _entered(request: Any) -> Generator[None]:
    """While the view runs, other guarded methods of its class claim nothing.

    So a method that calls ``super()`` gets what it would get without a guard.
    """
    inner: Any = http.plain(request)
    setattr(inner, _ENTERED, True)
    try:
        yield
    finally:
        delattr(inner, _ENTERED)


def _rest_view(request: Any) -> Any:
    """The view of Django REST framework that a request was made for; None for Django's own."""
    context: dict[str, Any] = getattr(request, "parser_context", None) or {}
    return context.get("view")


def _for_exception(request: Any, error: Exception) -> HttpResponseBase:
    view = _rest_view(request)
    if view is not None:
        try:
            return _rendered(request, view.handle_exception(error))
        except Exception as unhandled:
            error = unhandled
    response: HttpResponseBase = response_for_exception(http.plain(request), error)
    return response


def _rendered(request: Any, response: Any) -> HttpResponseBase:
    view = _rest_view(request)
    if view is not None:
        response = view.finalize_response(request, response, *view.args, **view.kwargs)
    if hasattr(response, "render"):
        response = response.render()
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"the view returned no HttpResponse, but {type(response).__name__}")
    return response


# ── transactions of Django's own ──────────────────────────────────────────────────────────────────


class _Every(set[str]):
    """Names every database: Django would commit after the answer is kept. See `_atomic`."""

    def __contains__(self, alias: object) -> bool:
        return True


_EVERY: Final = _Every()


def _atomic(view: Callable[..., Any]) -> Callable[..., Any]:
    """Apply ATOMIC_REQUESTS within the exchange: an answer is kept after the commit."""
    free: set[str] = getattr(view, "_non_atomic_requests", set())
    for alias, options in connections.settings.items():
        if options["ATOMIC_REQUESTS"] and alias not in free:
            view = transaction.atomic(using=alias)(view)
    return view
