"""Mounted anywhere, the console answers those who may ask, and nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from html.parser import HTMLParser
from typing import Any, Literal

import pytest

import semel
from semel.console import ConsoleUser, Role, routes
from semel.console.console import BLOCKED, FORM_WITHIN, WAITING, Console
from semel.console.view import Action, Screen
from semel.core.records import Request
from semel.errors import ConfigurationError
from tests.console.browser import SAME_SITE, SERVERS, Browser, by_header
from tests.waiting import Ahead

Server = Literal["asgi", "wsgi"]
every_server = pytest.mark.parametrize("server", SERVERS)


@pytest.fixture
def guard() -> semel.Guard:
    return semel.Guard("memory://", tenant=None)


@pytest.fixture
def console(guard: semel.Guard) -> Console:
    return guard.console(authorize=by_header)


class Links(HTMLParser):
    """Every address in a page, and what browsers would refuse to run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[each] or "" for each in ("href", "src", "action") if each in given]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        self.inline += [name for name in given if name == "style" or name.startswith("on")]


# ── mounted ───────────────────────────────────────────────────────────────────────────────────────


def plain() -> list[Screen]:
    return [each for each in routes.SCREENS if "{" not in each.path]


@every_server
@pytest.mark.parametrize("path", [each.path for each in plain()])
def test_every_screen_is_a_page_and_the_same_as_json(
    console: Console, server: Server, path: str
) -> None:
    browser = Browser(console, server, Role.CUSTODIAN)
    page = browser.get(f"/{path}")
    assert page.status_code == 200, page.text
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert json.dumps(browser.json(f"/{path}"))
    found = Links(page.text)
    assert found.inline == []
    assert all(link.startswith((".", "#")) for link in found.links), found.links


@every_server
def test_the_mount_itself_leads_to_its_first_page_without_naming_a_host(
    console: Console, server: Server
) -> None:
    answer = Browser(console, server, None).ask("GET", "", {"host": "evil.test"})
    if server == "asgi" and answer.status_code == 307:  # Starlette's router came first
        return
    assert answer.status_code == 303
    assert answer.headers["location"] == "./semel/"


@every_server
def test_every_answer_has_the_headers_that_keep_browsers_strict(
    console: Console, server: Server
) -> None:
    browser = Browser(console, server)
    for path in ("/", "/nowhere", "/static/console.css", "/static/nothing.css"):
        head = browser.get(path).headers
        policy = head["content-security-policy"]
        for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert part in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert head["x-content-type-options"] == "nosniff"
        assert head["referrer-policy"] == "no-referrer"
        assert head["cross-origin-opener-policy"] == "same-origin"
        assert head["cache-control"] == ("no-cache" if "console.css" in path else "no-store")


# ── who is let in ─────────────────────────────────────────────────────────────────────────────────


def test_a_console_without_authorize_cannot_be_made(guard: semel.Guard) -> None:
    with pytest.raises(ConfigurationError, match="authorize"):
        guard.console(authorize=None)  # type: ignore[arg-type]


@every_server
def test_nobody_sees_anything_but_files(console: Console, server: Server) -> None:
    browser = Browser(console, server, None)
    for path in ("/", "/records", "/nowhere"):
        answer = browser.get(path)
        assert answer.status_code == 403
        assert "Records" not in answer.text
    assert browser.get("/static/console.js").status_code == 200


@every_server
def test_a_user_without_roles_may_not_even_read(guard: semel.Guard, server: Server) -> None:
    console = guard.console(authorize=lambda request: ConsoleUser("eve", []))
    assert Browser(console, server).get("/").status_code == 403


async def awaited(request: Request) -> ConsoleUser | None:
    return by_header(request)


@every_server
def test_authorize_may_be_a_coroutine_function(guard: semel.Guard, server: Server) -> None:
    console = guard.console(authorize=awaited)
    assert Browser(console, server).get("/").status_code == 200
    assert Browser(console, server, None).get("/").status_code == 403


def raises(request: Request) -> ConsoleUser | None:
    raise RuntimeError("the directory is down")


async def araises(request: Request) -> ConsoleUser | None:
    raise RuntimeError("the directory is down")


@every_server
@pytest.mark.parametrize("authorize", [raises, araises, lambda request: "ada"])
def test_an_authorize_that_fails_lets_nobody_in_and_is_logged(
    guard: semel.Guard, server: Server, authorize: Any, caplog: pytest.LogCaptureFixture
) -> None:
    console = guard.console(authorize=authorize)
    with caplog.at_level(logging.WARNING):
        assert Browser(console, server).get("/").status_code == 403
    assert "authorize= of the console raised" in caplog.text


@pytest.mark.parametrize("roles", [["admin"], "admin", [1]])
def test_an_unknown_role_is_refused_where_it_is_given(roles: Any) -> None:
    with pytest.raises(ConfigurationError, match="no role of the console"):
        ConsoleUser("ada", roles)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201])
def test_a_name_fits_one_line_of_the_audit(name: str) -> None:
    with pytest.raises(ConfigurationError):
        ConsoleUser(name, ["viewer"])


def test_each_role_includes_the_ones_before() -> None:
    assert ConsoleUser("ada", ["custodian"]).may(Role.VIEWER)
    assert ConsoleUser("ada", "operator").may(Role.OPERATOR)
    assert not ConsoleUser("ada", ["viewer", "operator"]).may(Role.CUSTODIAN)


def concrete(path: str) -> str:
    return "/" + path.replace("{identity}", "ab" * 32)


@every_server
@pytest.mark.parametrize("found", [*routes.SCREENS, *routes.ACTIONS], ids=lambda each: each.path)
def test_whoever_lacks_the_role_is_refused(
    console: Console, server: Server, found: Screen | Action
) -> None:
    method = found.methods[0]
    for role in Role:
        answer = Browser(console, server, role).ask(method, concrete(found.path), SAME_SITE)
        refused = answer.status_code == 403 and "needs the role" in answer.text
        assert refused is not role.includes(found.role), (role, answer.status_code)


# ── forms ─────────────────────────────────────────────────────────────────────────────────────────

FOREIGN: list[dict[str, str]] = [
    {},
    {"origin": "null"},
    {"origin": "http://evil.test"},
    {"origin": "http://shop.test.evil.test"},
    {"origin": "http://shop.test@evil.test"},
    {"origin": "http://shop.test:8080"},
    {"origin": "://["},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "same-origin, cross-site"},
    {"sec-fetch-site": "same-origin", "origin": "http://evil.test"},
    {"sec-fetch-site": "cross-site", "origin": "http://shop.test"},
    {"referer": "http://shop.test/ops/semel/records"},
]


@every_server
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("found", routes.ACTIONS, ids=lambda each: each.path)
def test_a_form_from_elsewhere_is_refused(
    console: Console, server: Server, headers: dict[str, str], found: Action
) -> None:
    browser = Browser(console, server, Role.CUSTODIAN)
    answer = browser.ask("POST", concrete(found.path), headers, data={"reason": "x"})
    assert answer.status_code == 403, answer.text


@every_server
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://shop.test"},
        {"origin": "https://shop.test"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin", "origin": "null"},
        {"sec-fetch-site": "same-origin", "origin": "https://shop.test"},
    ],
    ids=str,
)
def test_a_form_of_our_own_pages_is_taken(
    console: Console, server: Server, headers: dict[str, str]
) -> None:
    form = {"key": "k", "path": "/payments"}
    answer = Browser(console, server).ask("POST", "/records/find", headers, data=form)
    assert answer.status_code == 404
    assert "No record has this key" in answer.text


@every_server
def test_what_is_no_form_is_not_read(console: Console, server: Server) -> None:
    browser = Browser(console, server)
    sent = {"content-type": "text/plain", **SAME_SITE}
    assert browser.ask("POST", "/records/find", sent, content=b"key=k").status_code == 415
    large = {"key": "k" * 1_000_001}
    assert browser.ask("POST", "/records/find", SAME_SITE, data=large).status_code == 413
    many = "&".join(["a=b"] * 20_001).encode()
    form = {"content-type": "application/x-www-form-urlencoded", **SAME_SITE}
    assert browser.ask("POST", "/records/find", form, content=many).status_code == 400


# ── methods and paths ─────────────────────────────────────────────────────────────────────────────


@every_server
def test_only_known_methods_are_answered(console: Console, server: Server) -> None:
    browser = Browser(console, server, Role.CUSTODIAN)
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "get"):
        answer = browser.ask(method, "/records", SAME_SITE)
        assert answer.status_code == (200 if method == "get" else 405), method
    assert browser.ask("POST", "/records", SAME_SITE).status_code == 405
    assert browser.ask("GET", "/records/find").status_code == 405
    head, page = browser.ask("HEAD", "/records"), browser.get("/records")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == page.headers["content-type"]
    options = browser.ask("OPTIONS", "/records", {"origin": "http://evil.test"})
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    assert not [name for name in options.headers if name.startswith("access-control")]


@every_server
@pytest.mark.parametrize(
    "path",
    [
        "/static/../console.py",
        "/static/%2e%2e/console.py",
        "/static/..%2fconsole.py",
        "/static//etc/passwd",
        "/static/console.css/",
        "/static/console.css%00",
        "/static/",
        "/records/",
        "/records//find",
        "/records/%2e%2e/records",
        "/RECORDS",
        "/records%0d%0aSet-Cookie:a=b",
        "/__init__.py",
        "/templates/base.html",
    ],
)
def test_no_path_leads_anywhere_else(console: Console, server: Server, path: str) -> None:
    answer = Browser(console, server).get(path)
    assert answer.status_code == 404
    assert "set-cookie" not in answer.headers


@every_server
def test_a_console_with_names_answers_under_no_other(guard: semel.Guard, server: Server) -> None:
    console = guard.console(authorize=by_header, hosts=["shop.test", "::1"])
    browser = Browser(console, server)
    for host in ("shop.test", "shop.test:8000", "SHOP.test", "[::1]:80"):
        assert browser.get("/", host=host).status_code == 200, host
    for host in ("evil.test", "shop.test.evil.test", "shop.test@evil.test", "", "["):
        assert browser.get("/", host=host).status_code == 421, host


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@every_server
def test_a_refusal_is_a_problem_where_json_is_asked_for(console: Console, server: Server) -> None:
    browser = Browser(console, server)
    answer = browser.ask("GET", "/nowhere", {"accept": "application/json"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {"title": "There is no such page.", "status": 404}


@pytest.mark.parametrize(("server", "most"), [("asgi", WAITING), ("wsgi", BLOCKED)])
def test_more_than_a_few_waiting_are_told_to_come_again(
    guard: semel.Guard, server: Server, most: int
) -> None:
    """Every thread stands at a gate; those who wait behind them are as many as may wait. Each holds
    a thread of a WSGI server, so there they are fewer."""
    gate = threading.Event()
    console = guard.console(authorize=by_header)
    threads = console._threads()
    held = [threads.run(gate.wait) for _ in range(most)]
    try:
        assert Browser(console, server).get("/static/console.css").status_code == 200
        answer = Browser(console, server).get("/")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
    finally:
        gate.set()
    assert all(each.result() for each in held)
    assert Browser(console, server).get("/").status_code == 200


async def test_a_form_that_comes_too_slowly_is_not_waited_for(guard: semel.Guard) -> None:
    sent: list[Any] = []
    begun, never = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if begun.is_set():
            await never.wait()
        begun.set()
        return {"type": "http.request", "body": b"key=", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/records/find", "headers": []}
    running = asyncio.create_task(guard.console(authorize=by_header)(scope, receive, send))
    await begun.wait()
    await Ahead().forward(FORM_WITHIN + 1)
    await running
    assert sent[0]["status"] == 408
    assert (b"Connection", b"close") in sent[0]["headers"]
