"""Plausible mistakes: each gets a sentence at the start that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import semel

anything: Any = semel


def handler(delivery: object) -> None:
    """What is decorated."""


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
    "a retention in seconds": (lambda: anything.ietf(retention=3600), "must be a timedelta"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_plausible_mistake_gets_a_sentence(mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(semel.ConfigurationError, match=sentence):
        make()


def test_what_is_right_is_taken() -> None:
    routes = [
        semel.Route("POST", "/x/{id}", POLICY),
        semel.Route("*", "/a:b/{rest:path}", POLICY),
    ]
    made = semel.Guard("memory://", tenant=None, routes=tuple(routes), drain=timedelta(0))
    assert made.delivers("mail")(handler) is handler
    assert [route.label for route in made.routes] == ["POST /x/{id}", "* /a:b/{rest:path}"]
