"""The standalone console lets in whom it knows: by a token, a password, or its proxy."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

import semel
from semel.console import Console, ConsoleUser, Role
from semel.console.login import Attempts, LoginPages, OneTimeToken, by_proxy
from semel.console.sessions import IDLE, LONGEST, OVERLAP, ROTATED, Sessions
from semel.console.standalone import Standalone
from semel.console.users import KnownUser, UsersFile
from semel.core.records import HeaderView, Request
from semel.errors import ConfigurationError
from tests.cli.commandline import run
from tests.console.browser import HOST, SAME_SITE, Browser
from tests.waiting import PATIENCE

ADA = ConsoleUser("ada", [Role.OPERATOR])
PASSWORD = "correct horse battery"
ADAS = {"name": "ada", "password": PASSWORD}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────


def test_a_session_ends_when_it_is_idle_and_after_its_longest_time() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    text = sessions.begin(KnownUser(ADA))
    clock.now += IDLE - 1
    assert sessions.user(text) == KnownUser(ADA)
    clock.now += IDLE - 1
    assert sessions.user(text) == KnownUser(ADA)
    for _ in range(int(LONGEST / IDLE) + 1):
        clock.now += IDLE - 1
        sessions.user(text)
    assert sessions.user(text) is None
    text = sessions.begin(KnownUser(ADA))
    clock.now += IDLE
    assert sessions.user(text) is None


def test_a_session_gets_another_text_and_the_old_one_ends_soon() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    first = sessions.begin(KnownUser(ADA))
    assert sessions.rotate(first) is None
    clock.now += ROTATED
    second = sessions.rotate(first)
    assert second is not None
    assert second != first
    assert sessions.user(first) == sessions.user(second) == KnownUser(ADA)
    assert sessions.rotate(first) is None, "only one follows"
    clock.now += OVERLAP
    assert sessions.user(first) is None
    assert sessions.user(second) == KnownUser(ADA)


def test_logging_out_ends_every_text_of_the_session() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    other = sessions.begin(KnownUser(ConsoleUser("bob", [])))
    first = sessions.begin(KnownUser(ADA))
    clock.now += ROTATED
    second = sessions.rotate(first)
    assert second is not None
    sessions.end(first)
    assert sessions.user(first) is None
    assert sessions.user(second) is None
    assert sessions.user(other) is not None


def test_sessions_are_bounded() -> None:
    sessions = Sessions(Clock())
    texts = [sessions.begin(KnownUser(ADA)) for _ in range(1001)]
    assert sessions.user(texts[0]) is None
    assert sessions.user(texts[-1]) is not None


# ── the one-time token ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def guard() -> semel.Guard:
    return semel.Guard("memory://", tenant=None)


def console_of(guard: semel.Guard, **given: Any) -> Console:
    pages = LoginPages(**{"secure": False, "port": 8410, **given})
    return Console(guard, pages.authorize, hosts=[HOST], login=pages)


def cookie(answer: httpx.Response) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def test_a_token_lets_in_once_and_sets_a_strict_cookie(guard: semel.Guard) -> None:
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token), "asgi", None)
    page = browser.get(f"/login?token={token.text}")
    assert (page.status_code, page.text.count(token.text)) == (200, 1)
    assert browser.get("/").headers["location"] == "./login"
    entered = browser.post("/login", token=token.text)
    assert (entered.status_code, entered.headers["location"]) == (303, "./")
    flags = {each.strip() for each in entered.headers["set-cookie"].split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= flags
    assert token.text not in entered.headers["set-cookie"]
    assert "ada" in browser.get("/", cookie=cookie(entered)).text
    again = browser.post("/login", token=token.text)
    assert again.status_code == 403
    assert "set-cookie" not in again.headers


def test_a_look_at_the_page_does_not_use_the_token_up(guard: semel.Guard) -> None:
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token), "asgi", None)
    for _ in range(2):
        browser.ask("HEAD", f"/login?token={token.text}")
        browser.get(f"/login?token={token.text}")
    assert browser.post("/login", token=token.text).status_code == 303


@pytest.mark.parametrize("given", ["", "x", "token", "é", "\ud800"])
def test_a_wrong_token_lets_nobody_in(guard: semel.Guard, given: str) -> None:
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token), "asgi", None)
    sent = {"token": given.encode("utf-8", "surrogatepass")}
    answer = browser.ask("POST", "/login", SAME_SITE, data=sent)
    assert answer.status_code == 403
    assert token.take(token.text) is ADA


def test_a_page_of_another_site_cannot_log_anybody_in(guard: semel.Guard) -> None:
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token), "asgi", None)
    sent = {"sec-fetch-site": "cross-site"}
    assert browser.ask("POST", "/login", sent, data={"token": token.text}).status_code == 403
    assert token.take(token.text) is ADA


def test_a_session_that_somebody_chose_is_not_taken_over(guard: semel.Guard) -> None:
    """Fixation: the cookie that was there before the login is worth nothing after it."""
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token), "asgi", None)
    chosen = {"cookie": "semel-console-8410=chosen", **SAME_SITE}
    entered = browser.ask("POST", "/login", chosen, data={"token": token.text})
    assert "chosen" not in cookie(entered)
    assert browser.get("/", cookie="semel-console-8410=chosen").status_code == 303
    both = f"semel-console-8410=chosen; {cookie(entered)}"
    assert browser.get("/", cookie=both).status_code == 303, "nobody knows which is whose"


def test_logging_out_needs_our_own_page_and_ends_the_session(guard: semel.Guard) -> None:
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token), "asgi", None)
    mine = {"cookie": cookie(browser.post("/login", token=token.text))}
    assert browser.ask("GET", "/logout", mine).status_code == 405
    foreign = {**mine, "sec-fetch-site": "cross-site"}
    assert browser.ask("POST", "/logout", foreign).status_code == 403
    assert browser.ask("GET", "/", mine).status_code == 200
    left = browser.ask("POST", "/logout", {**mine, **SAME_SITE})
    assert left.status_code == 303
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert browser.ask("GET", "/", mine).status_code == 303


def test_a_session_gets_a_new_cookie_while_it_is_used(guard: semel.Guard) -> None:
    clock, token = Clock(), OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token, sessions=Sessions(clock)), "asgi", None)
    first = cookie(browser.post("/login", token=token.text))
    assert "set-cookie" not in browser.get("/", cookie=first).headers
    clock.now += ROTATED
    second = cookie(browser.get("/", cookie=first))
    assert second != first
    clock.now += OVERLAP
    assert browser.get("/", cookie=first).status_code == 303
    assert browser.get("/", cookie=second).status_code == 200


def test_over_tls_the_cookie_is_bound_to_its_host(guard: semel.Guard) -> None:
    token = OneTimeToken(ADA)
    browser = Browser(console_of(guard, token=token, secure=True), "asgi", None)
    line = browser.post("/login", token=token.text).headers["set-cookie"]
    assert line.startswith("__Host-semel-console-8410=")
    assert line.endswith("; Secure")


# ── the users file ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.json"
    UsersFile(path).add(ADA, PASSWORD)
    return path


@pytest.fixture
def users(kept: Path, tmp_path: Path) -> Path:
    path = tmp_path / "users.json"
    path.write_bytes(kept.read_bytes())
    path.chmod(0o600)
    return path


def test_a_password_is_kept_as_a_hash_in_a_file_of_ones_own(users: Path, kept: Path) -> None:
    assert PASSWORD not in users.read_text()
    assert "scrypt$32768$8$3$" in users.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_whoever_has_the_password_is_let_in_until_they_leave_the_file(
    guard: semel.Guard, users: Path
) -> None:
    browser = Browser(console_of(guard, users=UsersFile(users)), "asgi", None)
    assert browser.post("/login", name="ada", password="wrong").status_code == 403
    assert browser.post("/login", name="bob", password=PASSWORD).status_code == 403
    mine = cookie(browser.post("/login", name="ada", password=PASSWORD))
    assert "operator" in browser.get("/", cookie=mine).text
    found = users.read_text()
    users.write_text(found.replace('"operator"', '"viewer"'))
    assert "operator" not in browser.get("/", cookie=mine).text
    users.write_text(found.replace('"ada"', '"eve"'))
    assert browser.get("/", cookie=mine).status_code == 303
    users.write_text("{")
    assert browser.get("/", cookie=mine).status_code == 403


def test_another_password_ends_the_sessions_of_the_old_one(guard: semel.Guard, users: Path) -> None:
    browser = Browser(console_of(guard, users=UsersFile(users)), "asgi", None)
    mine = cookie(browser.post("/login", name="ada", password=PASSWORD))
    assert browser.get("/", cookie=mine).status_code == 200
    UsersFile(users).add(ADA, "another long password")
    assert browser.get("/", cookie=mine).status_code == 303


def test_a_second_login_ends_the_session_before(guard: semel.Guard, users: Path) -> None:
    browser = Browser(console_of(guard, users=UsersFile(users)), "asgi", None)
    form = {"name": "ada", "password": PASSWORD}
    first = cookie(browser.send("/login", form))
    second = cookie(browser.ask("POST", "/login", {"cookie": first, **SAME_SITE}, data=form))
    assert browser.get("/", cookie=first).status_code == 303
    assert browser.get("/", cookie=second).status_code == 200


def test_who_guesses_waits_longer_and_longer(guard: semel.Guard, users: Path) -> None:
    clock = Clock()
    attempts = Attempts(clock)
    console = console_of(guard, users=UsersFile(users), attempts=attempts)
    browser = Browser(console, "asgi", None)
    for _ in range(5):
        attempts.failed("ada")
    answer = browser.post("/login", name="ada", password=PASSWORD)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    clock.now += 1
    assert browser.post("/login", name="ada", password="wrong").status_code == 403
    assert browser.post("/login", name="ada", password=PASSWORD).headers["retry-after"] == "2"
    clock.now += 2
    assert browser.post("/login", name="ada", password=PASSWORD).status_code == 303
    assert attempts.wait("ada") == 0


def test_a_stranger_who_guesses_does_not_keep_the_user_out(guard: semel.Guard, users: Path) -> None:
    attempts = Attempts(Clock())
    browser = Browser(console_of(guard, users=UsersFile(users), attempts=attempts), "asgi", None)
    entered = browser.post("/login", name="ada", password=PASSWORD)
    known = entered.headers.get_list("set-cookie")[1]
    assert known.startswith("semel-console-8410-known=")
    assert "HttpOnly; SameSite=Strict" in known
    for _ in range(50):
        attempts.failed("ada")
    for sent in ({}, {"cookie": "semel-console-8410-known=made.up"}):
        answer = browser.ask("POST", "/login", {**SAME_SITE, **sent}, data=ADAS)
        assert answer.status_code == 429
    sent = {**SAME_SITE, "cookie": known.partition(";")[0]}
    assert browser.ask("POST", "/login", sent, data=ADAS).status_code == 303
    for _ in range(5):
        wrong = {"name": "ada", "password": "wrong"}
        assert browser.ask("POST", "/login", sent, data=wrong).status_code == 403
    assert browser.ask("POST", "/login", sent, data=ADAS).status_code == 429, "it is counted too"
    UsersFile(users).add(ADA, f"another {PASSWORD}")
    assert browser.ask("POST", "/login", sent, data=ADAS).status_code == 429, "and not known"


def test_passwords_are_checked_one_at_a_time(guard: semel.Guard, users: Path) -> None:
    begun, go = Event(), Event()

    class Slow(UsersFile):
        def check(self, name: str, password: str) -> KnownUser | None:
            begun.set()
            assert go.wait(PATIENCE)
            return super().check(name, password)

    browser = Browser(console_of(guard, users=Slow(users)), "asgi", None)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(browser.post, "/login", name="ada", password=PASSWORD)
        assert begun.wait(PATIENCE)
        second = browser.post("/login", name="bob", password="whatever it is")
        go.set()
        assert (second.status_code, second.headers["retry-after"]) == (429, "1")
        assert first.result().status_code == 303


def test_a_name_that_nobody_can_have_is_not_remembered(guard: semel.Guard, users: Path) -> None:
    class Forgetful(Attempts):
        def failed(self, name: str) -> None:
            raise AssertionError(name)

    pages = console_of(guard, users=UsersFile(users), attempts=Forgetful())
    answer = Browser(pages, "asgi", None).post("/login", name="a" * 900_000, password="x")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"users": {"ada": {"roles": ["viewer"], "password": "secret"}}}',
        '{"users": {"ada": {"roles": ["admin"], "password": "scrypt$2$1$1$AA==$AA=="}}}',
        '{"users": {"ada": {"roles": ["viewer"], "password": "scrypt$2$1$1$$"}}}',
        '{"users": {"ada": {"roles": ["viewer"], "password": "md5$2$1$1$AA==$AA=="}}}',
    ],
)
def test_a_file_that_is_none_lets_nobody_in(users: Path, text: str) -> None:
    users.write_text(text)
    with pytest.raises(ConfigurationError):
        UsersFile(users).check("ada", "")


def test_a_file_that_others_may_write_is_refused(users: Path) -> None:
    users.chmod(0o666)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        UsersFile(users).users()


def test_users_are_added_listed_and_removed_by_a_command(users: Path) -> None:
    short = run("users", "add", str(users), "bob", "--role", "viewer", typed="short\n")
    assert short.returncode == 2
    assert "12 to" in short.stderr
    added = run("users", "add", str(users), "bob", "--role", "viewer", typed="long enough one\n")
    assert (added.returncode, added.stdout) == (0, "bob was added: viewer\n")
    listed = run("users", "list", str(users))
    assert "bob" in listed.stdout
    assert UsersFile(users).check("bob", "long enough one") is not None
    assert run("users", "remove", str(users), "bob").returncode == 0
    assert run("users", "remove", str(users), "bob").returncode == 2


# ── the proxy ─────────────────────────────────────────────────────────────────────────────────────


def request(client: str | None, *headers: tuple[str, str]) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"client": None if client is None else (client, 1)}
    return Request("GET", "/", b"", HeaderView(raw), scope)


PROXY = by_proxy("x-user", [ip_network("10.0.0.0/8")], None, (Role.VIEWER,))
WITH_ROLES = by_proxy("x-user", [ip_network("10.0.0.0/8")], "x-roles", (Role.VIEWER,))


def test_a_proxy_is_believed_at_its_addresses() -> None:
    assert PROXY(request("10.1.2.3", ("x-user", "ada"))) == ConsoleUser("ada", ["viewer"])
    assert PROXY(request("::ffff:10.1.2.3", ("x-user", "ada"))) is not None
    roles = ("x-roles", "staff, operator")
    found = WITH_ROLES(request("10.1.2.3", ("x-user", "ada"), roles))
    assert found == ConsoleUser("ada", ["operator"])


@pytest.mark.parametrize(
    "sent",
    [
        request("11.1.2.3", ("x-user", "ada")),
        request("127.0.0.1", ("x-user", "ada")),
        request(None, ("x-user", "ada")),
        request("not an address", ("x-user", "ada")),
        request("10.1.2.3"),
        request("10.1.2.3", ("x-user", " ")),
        request("10.1.2.3", ("x-user", "ada"), ("x-user", "root")),
        request("11.1.2.3", ("x-user", "ada"), ("x-forwarded-for", "10.1.2.3")),
    ],
)
def test_nobody_else_is(sent: Request) -> None:
    assert PROXY(sent) is None


def test_roles_that_are_missing_or_said_twice_are_none() -> None:
    ada, operator = ("x-user", "ada"), ("x-roles", "operator")
    assert WITH_ROLES(request("10.1.2.3", ada)) is None
    assert WITH_ROLES(request("10.1.2.3", ada, operator, operator)) is None
    nothing = WITH_ROLES(request("10.1.2.3", ada, ("x-roles", "staff")))
    assert isinstance(nothing, ConsoleUser)
    assert nothing.highest is None


# ── the command ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "0.0.0.0"}, "say who may log in"),
        ({"host": "192.0.2.1"}, "say who may log in"),
        ({"host": "console.test"}, "say who may log in"),
        ({"host": ""}, "say who may log in"),
        ({"host": "192.0.2.1", "users": True}, "in the clear"),
        ({"host": "0.0.0.0", "users": True, "behind_tls": True}, "--name"),
        ({"proxy_header": "x-user"}, "belong together"),
        ({"proxy_from": ["10.0.0.0/8"]}, "belong together"),
        ({"proxy_header": "x-user", "proxy_from": ["10.0.0.1/8"]}, "range of addresses"),
        ({"proxy_header": "x-user", "proxy_from": ["0.0.0.0/0"]}, "every address"),
        ({"proxy_header": "x-user", "proxy_from": ["10.0.0.0/8", "::/0"]}, "every address"),
        ({"role_header": "x-roles"}, "--proxy-header too"),
        ({"certificate": Path("a.pem")}, "belong together"),
        ({"users": True, "proxy_header": "x", "proxy_from": ["10.0.0.0/8"]}, "not both"),
    ],
)
def test_what_would_let_strangers_in_is_refused_with_a_sentence(
    given: dict[str, Any], said: str, users: Path
) -> None:
    if given.get("users"):
        given = {**given, "users": users}
    with pytest.raises(ConfigurationError, match=said):
        Standalone(**given).check()


def test_what_is_safe_is_not_refused(users: Path) -> None:
    Standalone().check()
    Standalone(host="::1").check()
    Standalone(users=users).check()
    Standalone(host="192.0.2.1", users=users, behind_tls=True).check()
    Standalone(host="192.0.2.1", proxy_header="x-user", proxy_from=["10.0.0.0/8"]).check()


AS_JSON = {"accept": "application/json"}


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``semel console`` in a process of its own, and the address that it has printed."""
    store = f"sqlite:///{folder}/semel.db"
    semel.Guard(store, tenant=None).migrate()
    command = [sys.executable, "-m", "semel", "console", store, "--port", "0", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.stdout.readline().strip(), process
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_the_command_prints_an_address_that_works_once_and_logs_no_token(tmp_path: Path) -> None:
    traces = "https://t.example/?q={identity}"
    with served(tmp_path, "--role", "viewer", "--trace-url", traces) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        base, _, token = address.partition("login?token=")
        with httpx.Client(follow_redirects=True, headers=SAME_SITE) as client:
            assert client.get(address).status_code == 200
            entered = client.post(f"{base}login", data={"token": token})
            assert (entered.status_code, str(entered.url)) == (200, base)
            assert "viewer" in entered.text
            assert client.get(f"{base}records").status_code == 200
            guard = semel.Guard(f"sqlite:///{tmp_path}/semel.db", tenant=None, maintenance=None)
            guard.once("a-key-of-some-length", lambda: 7, name="pay")
            (row,) = client.get(f"{base}records", headers=AS_JSON).json()["rows"]
            found = client.get(f"{base}records/{row['identity']}", headers=AS_JSON).json()
            assert found["traces"] == traces.format(identity=row["identity"][:16])
        with httpx.Client(headers=SAME_SITE) as stranger:
            assert stranger.post(f"{base}login", data={"token": token}).status_code == 403
            assert stranger.get(base).headers["location"] == "./login"
            assert stranger.get(base, headers={"host": "evil.test"}).status_code == 421
        process.terminate()
        assert process.stdout is not None
        printed = process.stdout.read()
    assert token not in printed, "only in the address itself"


def test_the_command_refuses_to_listen_widely_without_knowing_whom(tmp_path: Path) -> None:
    done = run("console", f"sqlite:///{tmp_path}/semel.db", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "say who may log in" in done.stderr


def test_the_command_refuses_an_address_of_traces_that_is_none(tmp_path: Path) -> None:
    wrong = "javascript:alert({identity})"
    done = run("console", f"sqlite:///{tmp_path}/semel.db", "--trace-url", wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert "must begin with https://" in done.stderr


def test_a_mounted_console_has_no_pages_to_log_in(guard: semel.Guard) -> None:
    console = guard.console(authorize=lambda request: None)
    assert Browser(console, "asgi", None).get("/login").status_code == 403
