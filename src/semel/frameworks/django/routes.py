"""Django's views: which one will answer, what tags it carries, and all there are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import asgiref.sync
from django.conf import settings
from django.conf.urls.i18n import is_language_prefix_patterns_used
from django.urls import Resolver404, get_resolver, get_urlconf
from django.utils.translation import get_language

from semel.core.policy import Policy
from semel.web.inventory import RouteEntry
from semel.web.tags import Tagged, any_tags, policy_of

if TYPE_CHECKING:
    from semel.guard import Guard

CLAIMS: Final = "__semel_claims__"
"""On a view, or a method of one, that makes the claim itself: it is `guarded`."""
_LANGUAGE: Final = "<language>/"
_CAPITALS: Final = re.compile(r"[^\W\d_a-z]+")
_MOST: Final = 64
"""Of a path that are looked at: each is a question to the resolver."""
_FEW: Final = 8
_VERBS: Final = ("get", "post", "put", "patch", "delete")
_ASIDE: Final = ("head", "options", "trace")


def find_django_tag(app: Any, raw: Any) -> Tagged | None:
    """The tag of the view that will answer a request of Django's."""
    if not any_tags():
        return None
    match = resolve(raw, raw.path_info)
    policy = None if match is None else policy_at(match.func, raw.method)
    return None if policy is None else Tagged(policy, label_of(raw.method, match))


def label_of(method: str, match: Any) -> str:
    """What a route is called: the same in every language, whose name may begin its path."""
    path, language = str(match.route), f"{get_language()}/"
    prefixed, _ = is_language_prefix_patterns_used(get_urlconf() or settings.ROOT_URLCONF)
    if prefixed and path.startswith(language):
        path = _LANGUAGE + path.removeprefix(language)
    return f"{method} /{path}"


def resolve(raw: Any, path: str) -> Any:
    """What the URL resolver says of a path; None where it will answer 404."""
    try:
        return get_resolver(getattr(raw, "urlconf", None)).resolve(path)
    except Resolver404:
        return None


def one_path(raw: Any, match: Any) -> str:
    """The path of a request, said alike for all that the resolver takes for one.

    Only a regular expression takes several: with an optional slash, with letters of any case.
    """
    path: str = raw.path_info
    bare = path.rstrip("/")
    if bare != path and not match.route.endswith("/") and _leads_there(raw, bare, match):
        path = bare
    if "(?" in match.route:
        for found in list(_CAPITALS.finditer(path))[:_MOST]:
            path = _lowered(raw, path, *found.span(), match)
    return path


def _lowered(raw: Any, path: str, start: int, end: int, match: Any) -> str:
    """With small letters there, if that leads to the same; of few letters each by itself.

    What is captured keeps its own.
    """
    small = path[start:end].lower()
    other = path[:start] + small + path[end:]
    if small == path[start:end] or len(other) != len(path):
        return path
    if _leads_there(raw, other, match):
        return other
    for at in range(start, end) if 1 < end - start <= _FEW else ():
        path = _lowered(raw, path, at, at + 1, match)
    return path


def _leads_there(raw: Any, path: str, match: Any) -> bool:
    found = resolve(raw, path)
    whole = ("func", "args", "kwargs", "route")
    return found is not None and all(getattr(found, it) == getattr(match, it) for it in whole)


def is_async(view: Any) -> bool:
    """Django marks some that are no coroutine functions by themselves."""
    return bool(asgiref.sync.iscoroutinefunction(view))  # pyright: ignore[reportDeprecated]


def policy_at(view: Any, method: str) -> Policy | None:
    """On the view function, its class, or the class's method."""
    for tagged in (view, method_of(view, method), view_class(view)):
        if tagged is not None and (policy := policy_of(tagged, method)):
            return policy
    return None


def claims_itself(view: Any, method: str) -> bool:
    return hasattr(view, CLAIMS) or hasattr(method_of(view, method), CLAIMS)


def view_class(view: Any) -> Any:
    """The class behind a view function; Django REST framework has its own name for it."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def method_of(view: Any, method: str) -> Any:
    """The method of a class that answers; a viewset's goes by the name of its action.

    For one that ``api_view`` made: the function inside, which it keeps to itself.
    """
    actions: dict[str, str] = getattr(view, "actions", None) or {}
    name = actions.get(method.lower(), method.lower())
    handler: Any = getattr(view_class(view), name, None)
    names: tuple[str, ...] = getattr(getattr(handler, "__code__", None), "co_freevars", ())
    if getattr(handler, "__module__", "") == "rest_framework.decorators" and "func" in names:
        return handler.__closure__[names.index("func")].cell_contents
    return handler


def authenticates_itself(view: Any) -> bool:
    """A view of a framework within Django: nobody is authenticated before it is called."""
    return hasattr(view_class(view), "perform_authentication") or is_ninja(view)


def allows_no(view: Any, method: str) -> bool:
    """Whether a view of REST framework will answer 405. One that dispatches by itself may not."""
    kind, name, rest = view_class(view), method.lower(), sys.modules.get("rest_framework.views")
    if rest is None or getattr(kind, "dispatch", None) is not rest.APIView.dispatch:
        return False
    return not hasattr(kind, name) and name not in (getattr(view, "actions", None) or ())


def is_ninja(view: Any) -> bool:
    """A view of Django Ninja: its own function, which looks for the operation when it is called."""
    return str(getattr(view, "__module__", "")).partition(".")[0] == "ninja"


def routes(around: Guard | None, base: str = "") -> Iterator[RouteEntry]:
    """Every route of the project, below ``base``.

    ``around``: a guard that the whole project is wrapped in, as any WSGI or ASGI application.
    """
    from semel.frameworks.django.middleware import SemelMiddleware, guard_of_settings

    named = f"{SemelMiddleware.__module__.rpartition('.')[0]}.{SemelMiddleware.__qualname__}"
    if around is None and named in settings.MIDDLEWARE:
        around = guard_of_settings()
    for path, view in _patterns(get_resolver(), ""):
        every = view_class(view) is None and not _allowed(view)
        for method in _methods(view):
            own = getattr(view, CLAIMS, None) or getattr(method_of(view, method), CLAIMS, None)
            guard = own or (None if authenticates_itself(view) else around)
            policy = policy_at(view, method)
            yield RouteEntry(method, base + path, view, guard, policy, base, every=every)


def _patterns(resolver: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for pattern in resolver.url_patterns:
        own = pattern.pattern
        path = prefix + (_LANGUAGE if hasattr(own, "language_prefix") else str(own))
        if hasattr(pattern, "url_patterns"):
            yield from _patterns(pattern, path)
        else:
            yield f"/{path}", pattern.callback


def _methods(view: Any) -> list[str]:
    """Of a class those that it has; a function answers whatever it is sent, unless it is told."""
    kind = view_class(view)
    if kind is None:
        return _allowed(view) or [verb.upper() for verb in _VERBS]
    actions: dict[str, str] = getattr(view, "actions", None) or {}
    if actions:
        return [verb.upper() for verb in actions]
    named: Sequence[str] = getattr(kind, "http_method_names", _VERBS)
    verbs = [verb.upper() for verb in named if hasattr(kind, verb) and verb not in _ASIDE]
    return verbs or ["*"]  # it answers by itself, in ``dispatch``


def _allowed(view: Any) -> list[str]:
    """What ``require_POST`` and the like were told, which they keep to themselves."""
    while view is not None:
        names: tuple[str, ...] = getattr(getattr(view, "__code__", None), "co_freevars", ())
        if "request_method_list" in names:
            told = view.__closure__[names.index("request_method_list")].cell_contents
            return [method for method in told if method not in ("HEAD", "OPTIONS")]
        view = getattr(view, "__wrapped__", None)
    return []
