"""What a screen or an action is, and what it is given.

A screen is a function of a `View` that returns data: a frozen class, a dict, lists of them. The
console renders that with the screen's template, or as JSON where the request asks for it. An action
is the same for a form that changes something. Neither knows HTTP, HTML or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from semel.console.cache import Cache
from semel.console.requests import ConsoleRefusal, ConsoleRequest, Fields
from semel.console.roles import ConsoleUser, Role
from semel.core.frozen import frozen
from semel.core.records import Identity, Micros
from semel.core.texts import one_line
from semel.operators.approvals import Approvals, TwoPersonRule
from semel.operators.operator import Operator
from semel.operators.trace_link import TraceLink

if TYPE_CHECKING:
    from semel.guard import Guard

T = TypeVar("T")

_LONGEST_REASON: Final = 500


class View:
    """One request, for a screen or an action: who asks, for what, and the guard it is about."""

    def __init__(
        self,
        request: ConsoleRequest,
        user: ConsoleUser,
        guard: Guard,
        app: Any,
        operator: Operator,
        named: Mapping[str, str],
        rule: TwoPersonRule | None = None,
        cache: Cache | None = None,
        apart: Callable[[Callable[[], object]], bool] | None = None,
        traces: TraceLink | None = None,
    ) -> None:
        self.request = request
        self.user = user
        self.guard = guard
        self.app = app
        """The application that the guard stands around, where the console was told."""
        self.operator = operator
        """Does the work; every act is in the audit under ``by=view.user.name``."""
        self.named = named
        """What the path of a screen says: of ``records/{identity}``, the identity."""
        self.approvals = Approvals(operator, rule or TwoPersonRule(), apart)
        """Does what cannot be undone, or has a second person approve it first."""
        self._traces = traces
        self._cache = cache or Cache()

    @property
    def query(self) -> Fields:
        """The filters and the page, as the address has them."""
        return self.request.query

    @property
    def form(self) -> Fields:
        """What an action was sent."""
        return self.request.form

    def cached(self, name: str, seconds: float, make: Callable[[], T]) -> T:
        """What ``make`` returned at most so long ago, for whoever asked: what reads thousands of
        records is read once for ten people who look. Never for what depends on the user."""
        return self._cache.get(name, seconds, make)

    def now(self) -> Micros:
        """The time, by the store's clock."""
        return self.operator.now()

    def traces_of(self, identity: Identity, since: Micros, until: Micros) -> str | None:
        """Where the traces of a record are found; None: nobody has said."""
        return None if self._traces is None else self._traces.of(identity, since, until)

    def may(self, role: Role) -> bool:
        """For parts of a screen: what the user may not do is not offered. Checked again, in any
        case, when it is done."""
        return self.user.may(role)

    def identity(self) -> Identity:
        """The identity that the path names."""
        return identity(self.named["identity"])

    def reason(self) -> str:
        """Why the person does it; nothing is done without one."""
        text = self.form.text("reason")
        if text is None:
            raise ConsoleRefusal(400, "Say why: the reason is part of the audit.")
        return one_line(text)[:_LONGEST_REASON]


def identity(text: str) -> Identity:
    """An identity as links have it: 64 hexadecimal digits."""
    try:
        octets = bytes.fromhex(text) if len(text) == 64 else b""
    except ValueError:
        octets = b""
    if len(octets) != 32:
        raise ConsoleRefusal(404, "There is no such record: an identity has 64 hexadecimal digits.")
    return Identity(octets)


@frozen
class Redirect:
    """An action's answer where a screen shows the result: ``Redirect("records/ab12…")``."""

    to: str
    query: Mapping[str, Any] | None = None


Show = Callable[[View], Any]


@frozen
class Screen:
    """A page to read, at a path below the console; ``{name}`` in it is one part of the path."""

    path: str
    title: str
    show: Show
    template: str
    role: Role = Role.VIEWER
    menu: bool = True
    """Whether the navigation has a link to it."""
    refresh: int = 0
    """Seconds after which a browser with JavaScript reads it again; 0: never by itself."""
    shared: bool = False
    """It is the same for all who have the same role: it is made once for all who look at once."""
    methods: ClassVar[tuple[str, ...]] = ("GET", "HEAD", "OPTIONS")

    def run(self, view: View) -> Any:
        return self.show(view)


@frozen
class Action:
    """A form that may change something, sent by POST; its answer is a page, or a `Redirect`."""

    path: str
    title: str
    act: Show
    role: Role
    template: str = "act.html"
    methods: ClassVar[tuple[str, ...]] = ("POST", "OPTIONS")

    def run(self, view: View) -> Any:
        return self.act(view)
