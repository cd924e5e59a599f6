"""How people log in to the standalone console: by a one-time token, a password, or a proxy.

A token or a password is exchanged for a session in a cookie. A proxy that has authenticated people
says who they are with every request, and only the proxy's addresses are believed.
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final

from semel.console import responses
from semel.console.render import render
from semel.console.requests import ConsoleRefusal, ConsoleRequest, check_site
from semel.console.roles import LONGEST_NAME, Authorize, ConsoleUser, Role
from semel.console.sessions import LONGEST, Sessions
from semel.console.users import KnownUser, UsersFile
from semel.core.frozen import replace
from semel.core.records import Request, Response
from semel.errors import ConfigurationError
from semel.log import log

LOGIN: Final = "login"
LOGOUT: Final = "logout"
_FREE_TRIES: Final = 5
"""Wrong passwords for one name before somebody has to wait."""
_LONGEST_WAIT: Final = 300.0
_MOST_NAMES: Final = 10_000
_KNOWN_FOR: Final = 90 * 86_400
"""Seconds for which a browser is known as one in which somebody has logged in."""


class OneTimeToken:
    """A random text that lets its first user in. It is never stored, and in no log."""

    def __init__(self, user: ConsoleUser) -> None:
        self.text = secrets.token_urlsafe(32)
        self.user = user
        self._unused = [sha256(self.text.encode()).digest()]

    def take(self, text: str) -> ConsoleUser | None:
        """Its user, once."""
        given = sha256(text.encode("utf-8", "surrogatepass")).digest()
        if not self._unused or not hmac.compare_digest(given, self._unused[0]):
            return None
        try:
            self._unused.pop()  # atomic: of two who come together one gets it
        except IndexError:
            return None
        return self.user


class Attempts:
    """Slows down who guesses: after some wrong passwords for a name, each next try waits longer.

    A stranger who guesses would keep the real user out. So a browser in which the user has logged
    in before is counted by itself: ``name`` is the user's, with the browser's own text behind it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def wait(self, name: str) -> float:
        """Seconds until this name may be tried again."""
        with self._lock:
            count, last = self._wrong.get(name, (0, 0.0))
            if count < _FREE_TRIES:
                return 0.0
            pause = min(_LONGEST_WAIT, 2.0 ** (count - _FREE_TRIES))
            return max(0.0, last + pause - self._clock())

    def failed(self, name: str) -> None:
        with self._lock:
            if len(self._wrong) >= _MOST_NAMES:
                self._wrong = {}
            count, _ = self._wrong.get(name, (0, 0.0))
            self._wrong[name] = (min(count + 1, 100), self._clock())

    def passed(self, name: str) -> None:
        with self._lock:
            self._wrong.pop(name, None)


class LoginPages:
    """The pages ``login`` and ``logout``, and who has a session.

    ``token`` or ``users``: what is exchanged for a session. ``secure``: browsers speak TLS. Cookies
    do not tell ports apart, so their name has the ``port``: two consoles of one machine do not end
    each other's sessions.
    """

    def __init__(
        self,
        *,
        token: OneTimeToken | None = None,
        users: UsersFile | None = None,
        secure: bool,
        port: int,
        sessions: Sessions | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self._token = token
        self._users = users
        self._secure = secure
        self._cookie = f"{'__Host-' if secure else ''}semel-console-{port}"
        self._known_cookie = f"{self._cookie}-known"
        self._checking = threading.Lock()
        self._sessions = sessions or Sessions()
        self._attempts = attempts or Attempts()

    def authorize(self, request: Request) -> ConsoleUser | None:
        """Who has the session in the cookie.

        Whoever has left the users file, or has another password now, has none any more; a new role
        counts at once.
        """
        text = self._session(request)
        found = None if text is None else self._sessions.user(text)
        if found is None or self._users is None:
            return None if found is None else found.user
        known = self._users.users().get(found.user.name)
        return known.user if known is not None and known.password == found.password else None

    def respond(self, given: ConsoleRequest) -> Response | None:
        """The answer to a request for one of its pages; None for any other."""
        if given.path not in (LOGIN, LOGOUT):
            return None
        if given.method == "POST":
            check_site(given.request)
            return self._log_in(given) if given.path == LOGIN else self._log_out(given)
        if given.path == LOGOUT or given.method not in ("GET", "HEAD"):
            raise ConsoleRefusal(405, "That is not done in this way.", (("Allow", "POST"),))
        return self._form(given, 200, None)

    def renewed(self, request: Request, answer: Response) -> Response:
        """``answer`` with a new cookie, when it is time for one."""
        text = self._session(request)
        following = None if text is None else self._sessions.rotate(text)
        if following is None:
            return answer
        line = (b"set-cookie", self._set(following).encode())
        return replace(answer, headers=(*answer.headers, line))

    def _log_in(self, given: ConsoleRequest) -> Response:
        try:
            users = self._users
            user = self._by_token(given) if users is None else self._by_password(users, given)
        except ConsoleRefusal as refusal:
            return self._form(given, refusal.status, refusal.text, refusal.headers)
        before = self._session(given.request)
        if before is not None:
            self._sessions.end(before)
        log.info("semel: %s has logged in to the console", user.user.name)
        cookies = [("Set-Cookie", self._set(self._sessions.begin(user)))]
        if user.password:
            text = secrets.token_urlsafe(16)
            known = f"{text}.{_browser_tag(user, text)}"
            line = self._set(known, _KNOWN_FOR, self._known_cookie)
            cookies.append(("Set-Cookie", line))
        return responses.redirect(given.url(""), cookies)

    def _log_out(self, given: ConsoleRequest) -> Response:
        text = self._session(given.request)
        if text is not None:
            self._sessions.end(text)
        gone = ("Set-Cookie", self._set("", 0))
        clear = ("Clear-Site-Data", '"cache"')
        return responses.redirect(given.url(LOGIN), (gone, clear))

    def _by_token(self, given: ConsoleRequest) -> KnownUser:
        user = None if self._token is None else self._token.take(given.form.get("token", ""))
        if user is None:
            said = "This address was used already, or is not whole. Start `semel console` again."
            raise ConsoleRefusal(403, said)
        return KnownUser(user)

    def _by_password(self, users: UsersFile, given: ConsoleRequest) -> KnownUser:
        name, password = given.form.get("name", ""), given.form.get("password", "")
        if len(name) > LONGEST_NAME:
            raise ConsoleRefusal(403, _WRONG)
        counted = self._counted(users, name, given.request)
        wait = math.ceil(self._attempts.wait(counted))
        if wait:
            said = f"Too many wrong passwords for this name: wait {wait} s."
            raise ConsoleRefusal(429, said, (("Retry-After", str(wait)),))
        user = self._checked(users, name, password, counted)
        if user is None:
            log.warning("semel: a wrong name or password at the console")
            raise ConsoleRefusal(403, _WRONG)
        self._attempts.passed(counted)
        return user

    def _checked(
        self, users: UsersFile, name: str, password: str, counted: str
    ) -> KnownUser | None:
        """One password at a time: a stranger who sends many leaves a thread for those who work."""
        if not self._checking.acquire(blocking=False):
            said = "Somebody else logs in at this moment: try again."
            raise ConsoleRefusal(429, said, (("Retry-After", "1"),))
        try:
            self._attempts.failed(counted)  # before it is checked: many tries at once are many
            return users.check(name, password)
        finally:
            self._checking.release()

    def _counted(self, users: UsersFile, name: str, request: Request) -> str:
        """The name, and behind it the browser's text where this user has logged in with it."""
        user = users.users().get(name)
        text, _, tag = (self._sent(request, self._known_cookie) or "").partition(".")
        if user is None or not hmac.compare_digest(tag.encode(), _browser_tag(user, text).encode()):
            return name
        return f"{name}\n{text}"

    def _form(
        self,
        given: ConsoleRequest,
        status: int,
        said: str | None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Response:
        def url(to: str = "", **query: Any) -> str:
            return given.url(to, query)

        html = render(
            "login.html",
            title="Log in",
            said=said,
            url=url,
            by_password=self._users is not None,
            who=None if self._token is None else self._token.user,
            token=given.query.get("token", ""),
        )
        return responses.page(status, html, headers)

    def _set(self, text: str, seconds: int = int(LONGEST), name: str | None = None) -> str:
        flags = f"HttpOnly; SameSite=Strict{'; Secure' if self._secure else ''}"
        # "/" is the path that __Host- demands.
        return f"{name or self._cookie}={text}; Path=/; Max-Age={seconds}; {flags}"

    def _session(self, request: Request) -> str | None:
        return self._sent(request, self._cookie)

    def _sent(self, request: Request, name: str) -> str | None:
        """The text in a cookie; none where several were sent, one of them by somebody else."""
        found: list[str] = []
        for line in request.headers.all("cookie"):
            for part in line.decode("latin-1").split(";"):
                try:
                    morsels = SimpleCookie(part.strip())
                except CookieError:
                    continue
                if name in morsels:
                    found.append(morsels[name].value)
        return found[0] if len(found) == 1 else None


def _browser_tag(user: KnownUser, text: str) -> str:
    """Proves that this user has logged in with the browser; another password makes another."""
    said = f"semel browser\n{user.user.name}\n{text}".encode()
    return hmac.digest(user.password.encode(), said, "sha256").hex()


_WRONG: Final = "The name or the password is wrong."


def by_proxy(
    header: str,
    ranges: Sequence[IPv4Network | IPv6Network],
    role_header: str | None,
    roles: Sequence[Role],
) -> Authorize:
    """Believe a proxy that names the user in ``header``, if it asks from one of these addresses.

    ``role_header``: where it says their roles, with commas between; without it they have ``roles``.
    A header that comes twice says nothing: one of them may be the client's own.
    """

    def authorize(request: Request) -> ConsoleUser | None:
        client = request.raw.get("client")
        if not client or not _within(client[0], ranges):
            log.warning("semel: a request to the console did not come from the proxy")
            return None
        names = request.headers.all(header)
        if len(names) != 1 or not names[0].strip():
            return None
        given: Sequence[str] = roles
        if role_header is not None:
            lines = request.headers.all(role_header)
            if len(lines) != 1:
                return None
            said = lines[0].decode("latin-1").split(",")
            given = [each.strip() for each in said if each.strip() in tuple(Role)]
        try:
            return ConsoleUser(names[0].strip().decode("utf-8"), given)
        except (UnicodeDecodeError, ConfigurationError):
            return None

    return authorize


def _within(address: str, ranges: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:  # a socket file has no address
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in each for each in ranges)
