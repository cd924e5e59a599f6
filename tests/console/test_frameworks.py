"""The console inside Flask and Django: their own sessions say who it is."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import flask
import httpx
import pytest
from django.urls import include, path

import semel
from semel.console import ConsoleUser
from semel.console.requests import MAX_BODY
from semel.core.records import Request
from semel.frameworks.django import console_urls
from semel.frameworks.flask import install, mount_console
from tests.console.browser import MOUNT, SAME_SITE
from tests.frameworks.django_site import Site


@pytest.fixture
def guard() -> semel.Guard:
    """It demands keys everywhere: the console's forms have none."""
    return semel.Guard("memory://", tenant=None, policy=semel.ietf(required=True))


# ── Flask ─────────────────────────────────────────────────────────────────────────────────────────


def by_session(request: Request) -> ConsoleUser | None:
    assert request.raw.path.startswith(MOUNT), "Flask's own request"
    name = flask.session.get("user")
    return None if name is None else ConsoleUser(name, ["viewer"])


@pytest.fixture(params=[False, True], ids=["plain", "guarded"])
def shop(guard: semel.Guard, request: pytest.FixtureRequest) -> flask.Flask:
    app = flask.Flask("shop")
    app.secret_key = "x"
    if request.param:
        install(app, guard)

    @app.get("/enter")
    def enter() -> str:
        flask.session["user"] = "ada"
        return ""

    mount_console(app, guard.console(authorize=by_session, app=app), MOUNT)
    return app


def test_in_flask_its_session_says_who_it_is(shop: flask.Flask) -> None:
    client = shop.test_client()
    assert client.get(f"{MOUNT}/").status_code == 403
    client.get("/enter")
    page = client.get(f"{MOUNT}/records")
    assert page.status_code == 200
    assert b"ada" in page.data
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert client.get(f"{MOUNT}").headers["Location"].endswith(f"{MOUNT}/")
    assert client.head(f"{MOUNT}/records").data == b""
    assert client.options(f"{MOUNT}/records").headers["Allow"] == "GET, HEAD, OPTIONS"
    assert client.get(f"{MOUNT}/static/%2e%2e/console.py").status_code == 404


def test_in_flask_a_form_needs_no_key_and_a_page_of_ours(shop: flask.Flask) -> None:
    client = shop.test_client()
    client.get("/enter")
    form = {"key": "k", "path": "/p"}
    assert client.post(f"{MOUNT}/records/find", data=form).status_code == 403
    found = client.post(f"{MOUNT}/records/find", data=form, headers=SAME_SITE)
    assert found.status_code == 404
    assert b"No record has this key" in found.data


def test_in_flask_a_form_without_end_is_not_read(shop: flask.Flask) -> None:
    sent = io.BytesIO(b"a" * 3 * MAX_BODY)
    answer = shop.test_client().post(
        f"{MOUNT}/records/find",
        input_stream=sent,
        content_length=3 * MAX_BODY,
        content_type="application/x-www-form-urlencoded",
        headers=SAME_SITE,
    )
    assert answer.status_code == 413
    assert sent.tell() <= MAX_BODY + 1


# ── Django ────────────────────────────────────────────────────────────────────────────────────────


class Authentication:
    """A middleware that knows the user, as Django's own does."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.user = request.headers.get("x-user")
        return self._get_response(request)


def by_user(request: Request) -> ConsoleUser | None:
    user = request.raw.user
    return None if user is None else ConsoleUser(user, ["viewer"])


@pytest.fixture(params=["wsgi", "asgi"])
def ask(guard: semel.Guard, request: pytest.FixtureRequest) -> Iterator[Any]:
    console = guard.console(authorize=by_user)
    middleware = [
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
        f"{__name__}.Authentication",
        "semel.frameworks.django.SemelMiddleware",
    ]
    site = Site(guard, {}, MIDDLEWARE=middleware)
    from django.conf import settings

    settings.ROOT_URLCONF.urlpatterns = [path("ops/semel/", include(console_urls(console)))]

    def send(method: str, where: str, **given: Any) -> httpx.Response:
        url = f"http://testserver{MOUNT}{where}"
        if request.param == "wsgi":
            from django.core.wsgi import get_wsgi_application

            with httpx.Client(transport=httpx.WSGITransport(get_wsgi_application())) as client:
                return client.request(method, url, **given)

        async def awaited() -> httpx.Response:
            from django.core.asgi import get_asgi_application

            app: Any = get_asgi_application()
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
                return await client.request(method, url, **given)

        return asyncio.run(awaited())

    yield send
    site.close()


def test_in_django_its_middleware_says_who_it_is(ask: Any) -> None:
    ada = {"x-user": "ada"}
    assert ask("GET", "/").status_code == 403
    page = ask("GET", "/records", headers=ada)
    assert page.status_code == 200
    assert "ada" in page.text
    assert page.headers.get_list("content-type") == ["text/html; charset=utf-8"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert ask("HEAD", "/records", headers=ada).content == b""
    assert ask("GET", "/static/console.css").status_code == 200
    assert ask("GET", "/static/%2e%2e%2fconsole.py").status_code == 404


def test_in_django_a_form_needs_no_key_and_a_page_of_ours(ask: Any) -> None:
    ada, form = {"x-user": "ada"}, {"key": "k", "path": "/p"}
    assert ask("POST", "/records/find", headers=ada, data=form).status_code == 403
    found = ask("POST", "/records/find", headers={**ada, **SAME_SITE}, data=form)
    assert found.status_code == 404
    assert "No record has this key" in found.text
