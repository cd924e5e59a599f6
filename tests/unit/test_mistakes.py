"""Plausible mistakes: each gets a sentence at the start that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette

import semel

anything: Any = semel


KEY = "a-key-of-one-payment"


def handler(delivery: object) -> None:
    """What is decorated."""


async def pay() -> int:
    return 1


def guard(**options: Any) -> Any:
    made: Any = semel.Guard
    return made("memory://", **{"tenant": None, **options})


POLICY = semel.ietf()

MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "bare delivers": (lambda: guard().delivers(handler), r'@guard.delivers\("mail"\)'),
    "bare probe": (lambda: guard().probe(handler), r'@guard.probe\("charge"\)'),
    "bare route": (lambda: guard().route(handler), r"@guard.route\(semel.ietf\(\)\)"),
    "a name that is none": (lambda: guard().delivers(7), "takes a name, not 7"),
    "a policy that was not made": (lambda: guard(policy=semel.ietf), r"semel.ietf\(\)"),
    "a policy that was not made, on a route": (
        lambda: guard().route(semel.payments),
        r"not the function: semel.payments\(\)",
    ),
    "a policy by its name": (lambda: guard(policy="stripe"), "takes a policy.*not 'stripe'"),
    "drain in seconds": (lambda: guard(drain=30), r"timedelta\(seconds=30\)"),
    "drain of half a second": (lambda: guard(drain=0.5), r"timedelta\(seconds=0.5\)"),
    "drain as text": (lambda: guard(drain="30s"), "drain= takes a timedelta, not '30s'"),
    "maintenance in seconds": (lambda: guard(maintenance=60), "a timedelta, or None"),
    "one route and no list": (
        lambda: guard(routes=semel.Route("POST", "/x", POLICY)),
        "takes a list of semel.Route",
    ),
    "a route as a tuple": (
        lambda: guard(routes=[("POST", "/x", POLICY)]),
        "semel.Route, not tuple",
    ),
    "routes as a mapping": (lambda: guard(routes={"/x": POLICY}), "takes a list of semel.Route"),
    "a parameter as in Flask": (
        lambda: semel.Route("POST", "/x/<id>", POLICY),
        r"\{id\} here.*not <id>",
    ),
    "a parameter as in Django": (
        lambda: semel.Route("POST", "/x/<int:id>/y", POLICY),
        r"\{id\} here.*not <int:id>",
    ),
    "a parameter as in Express": (lambda: semel.Route("POST", "/x/:id", POLICY), r"\{id\} here"),
    "a route without its method": (
        lambda: anything.Route("/x", POLICY, POLICY),
        "is a method, a path and a policy",
    ),
    "path and method the wrong way round": (
        lambda: semel.Route("/x", "POST", POLICY),
        r"method of a route comes first: semel.Route\('POST', '/x'",
    ),
    "methods in a tuple": (
        lambda: anything.Route(("POST", "PUT"), "/x", POLICY),
        "is a method, a path and a policy",
    ),
    "secrets as a list": (lambda: guard(secrets=[b"s"]), "takes secrets by key id"),
    "a name in bytes": (lambda: guard(name=b"shop"), "takes text"),
    "waiters as text": (lambda: guard(max_waiters="8"), "takes a whole number"),
    "a deliverer's timeout in seconds": (
        lambda: guard().delivers("mail", timeout=30)(handler),
        "timeout= takes a timedelta, not 30",
    ),
    "a deliverer's tries as text": (
        lambda: guard().delivers("mail", tries="3")(handler),
        "tries= must be at least 1",
    ),
    "a wildcard": (lambda: semel.Route("POST", "/x/*", POLICY), r"several are \{name:path\}"),
    "a JSONPath": (lambda: semel.body("$.meta.key"), "write a JSON Pointer"),
    "a word for yes": (lambda: anything.ietf(required="yes"), "neither True nor False"),
    "a word for no": (lambda: guard(publish="no"), "publish='no' is neither True nor False"),
    "a store that is no URL": (lambda: semel.Guard("shop.db", tenant=None), "a store is a URL"),
    "nothing to guard": (lambda: guard().asgi(None), "takes an application, not NoneType"),
    "a class to guard": (lambda: guard().asgi(FastAPI), "not the class FastAPI"),
    "Flask for ASGI": (lambda: guard().asgi(Flask("shop")), "Flask is a WSGI application"),
    "FastAPI for WSGI": (lambda: guard().wsgi(FastAPI()), "FastAPI is an ASGI application"),
    "Starlette for FastAPI": (lambda: guard().fastapi(Starlette()), "not Starlette; for others"),
    "a result and no function": (
        lambda: guard().once(KEY, len("paid"), name="pay"),
        "as a function, not as its result",
    ),
    "a coroutine function for once": (lambda: guard().once(KEY, pay, name="pay"), "guard.aonce"),
    "a number for a key": (lambda: guard().once(5, lambda: 1, name="pay"), "a text, not 5"),
    "a retention in seconds": (lambda: anything.ietf(retention=3600), "must be a timedelta"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_plausible_mistake_gets_a_sentence(mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(semel.ConfigurationError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("effect", "@guard.delivers"),
        ("flask", "semel.frameworks.flask.install"),
        ("django", "semel.frameworks.django.SemelMiddleware"),
        ("litestar", "on_app_init"),
        ("middleware", "guard.asgi"),
    ],
)
def test_a_name_that_a_guard_has_not_is_answered_with_the_one_it_has(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"no '{name}': write .*{meant}"):
        getattr(guard(), name)


async def test_a_plain_function_that_was_to_be_awaited_is_not_run_again() -> None:
    """It has run, and there is nothing to await: a retry must not do it a second time."""
    guarded, ran = guard(), list[int]()

    def charge() -> int:
        ran.append(1)
        return 1

    with pytest.raises(semel.OutcomeUnknown, match=r"takes a coroutine function.*returned int"):
        await guarded.aonce(KEY, charge, name="charge")
    with pytest.raises(semel.Refused) as refused:
        await guarded.aonce(KEY, charge, name="charge")
    assert (refused.value.code, ran) == ("outcome-unknown", [1])
    await guarded.aclose()


def test_what_is_right_is_taken() -> None:
    routes = [
        semel.Route("POST", "/x/{id}", POLICY),
        semel.Route("*", "/a:b/{rest:path}", POLICY),
    ]
    made = semel.Guard("memory://", tenant=None, routes=tuple(routes), drain=timedelta(0))
    assert made.delivers("mail")(handler) is handler
    assert [route.label for route in made.routes] == ["POST /x/{id}", "* /a:b/{rest:path}"]
