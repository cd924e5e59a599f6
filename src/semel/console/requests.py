"""A request to the console, and the rules that hold before any page sees it.

Links are relative to the page, so the console need not know where it is mounted, and nothing in
them comes from a Host header or from a prefix that a proxy has set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from semel.core.frozen import derived, frozen
from semel.core.records import Request

MAX_BODY: Final = 1_000_000
"""Bytes of a form. The largest is a list of some thousand identities."""
_MAX_FIELDS: Final = 20_000
READS: Final = frozenset({"GET", "HEAD"})
METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST")


class ConsoleRefusal(Exception):
    """The console does not do that: a status, and a sentence for the person who asked."""

    def __init__(self, status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = tuple(headers)


class Fields(Mapping[str, str]):
    """The fields of a query or of a form; a repeated one gives its last value."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)
        self._last = dict(self.pairs)

    def __getitem__(self, name: str) -> str:
        return self._last[name]

    def __iter__(self) -> Any:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def all(self, name: str) -> tuple[str, ...]:
        """Every value of a field: of checkboxes, say."""
        return tuple(value for each, value in self.pairs if each == name)

    def text(self, name: str) -> str | None:
        """The value without blanks around it; None where nothing is given."""
        return self._last.get(name, "").strip() or None


@frozen
class ConsoleRequest:
    """One request, below the place where the console is mounted."""

    request: Request
    """As the application sees it; ``authorize`` is given this."""
    path: str
    """Below the mount, without its first slash, as it was decoded once."""
    bare: bool
    """It is the mount itself, without a slash at its end, from which no link would lead on."""
    mount: str
    """The last segment of the prefix, for the one redirect that adds the slash."""
    body: bytes = b""
    query: Fields = derived()
    form: Fields = derived()

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", _fields(self.request.query))
        form = Fields()
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.body and kind == "application/x-www-form-urlencoded":
            form = _fields(self.body)
        elif self.body and self.request.method == "POST":
            raise ConsoleRefusal(415, "Forms are sent as application/x-www-form-urlencoded.")
        object.__setattr__(self, "form", form)

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def wants_json(self) -> bool:
        """JSON is asked for by name, and a page is not: browsers ask for pages."""
        accept = self.request.headers.get("accept", "").lower()
        return "application/json" in accept and "text/html" not in accept

    def url(self, to: str, query: Mapping[str, Any] | None = None) -> str:
        """A link from this page to another, relative: ``url("records", {"state": "unknown"})``."""
        up = "../" * self.path.count("/") or "./"
        given = {k: v for k, v in (query or {}).items() if v is not None and v != ""}
        return up + quote(to, safe="/") + (f"?{urlencode(given, doseq=True)}" if given else "")


def _fields(sent: bytes) -> Fields:
    try:
        text = sent.decode("ascii", "replace")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise ConsoleRefusal(400, "The request has too many fields.") from None
    return Fields(pairs)


# ── who may send a form ───────────────────────────────────────────────────────────────────────────


def check_site(request: Request) -> None:
    """Refuse a request that changes something and was not sent by a page of this origin.

    A browser says where a request comes from in ``Sec-Fetch-Site``, which no page can forge. One
    that does not send it, since it is old or speaks plain HTTP, names the page's origin in
    ``Origin``. Where neither is sent nothing proves that the console's own page sent the form, and
    it is refused. Our pages send no referrer, and browsers say ``Origin: null`` then.
    """
    site = request.headers.all("sec-fetch-site")
    origin = request.headers.all("origin")
    if site:
        if site != (b"same-origin",):
            raise ConsoleRefusal(403, "This was sent by a page of another site.")
        origin = tuple(each for each in origin if each != b"null")
    elif not origin:
        raise ConsoleRefusal(
            403, "Nothing says which page has sent this: no Sec-Fetch-Site, no Origin."
        )
    if any(_host_of(each) != _own_host(request) for each in origin):
        raise ConsoleRefusal(403, "This was sent by a page of another origin.")


def _host_of(origin: bytes) -> str | None:
    """The host and port of an origin; the scheme may be that of a proxy in front."""
    try:
        parts = urlsplit(origin.decode("ascii"))
    except ValueError:
        return None
    return parts.netloc.lower() or None


def _own_host(request: Request) -> str:
    hosts = request.headers.all("host")
    return hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""


def check_host(request: Request, hosts: frozenset[str] | None) -> None:
    """Refuse a name that is not the console's: a foreign name may be made to lead to it.

    ``hosts``: names without a port; None: the application in front has checked.
    """
    if hosts is None:
        return
    try:
        named = urlsplit(f"//{_own_host(request)}").hostname or ""
    except ValueError:
        named = ""
    if named not in hosts:
        raise ConsoleRefusal(421, "The console does not answer under this name.")
