"""Records: the list with its filters, and finding one by its whole key."""

from __future__ import annotations

from typing import Any, Final

from semel.console.requests import ConsoleRefusal
from semel.console.screens.filters import age, since
from semel.console.times import Moment, moment
from semel.console.view import Redirect, View
from semel.core.frozen import frozen
from semel.core.records import Glimpse, Micros, State, whole_origin
from semel.errors import ConfigurationError
from semel.operators import lists
from semel.operators.operator import KeyAddress
from semel.web.inventory import KnownRoutes

PAGE: Final = 50
LOOK: Final = 10_000
"""Records that are looked at for a page; with a rare filter the next page goes on from there."""


@frozen
class RecordRow:
    """What the list shows of one record; never its key."""

    identity: str
    state: State
    method: str
    path: str
    tenant: str
    route: str | None
    application: str | None
    created_at: Moment
    due_at: Moment | None
    reason: str | None
    size: int | None
    status: int | None
    """Of its answer; None: it has none, or it is encrypted."""
    resource: str | None


@frozen
class RecordsPage:
    """Newest first."""

    rows: tuple[RecordRow, ...]
    looked: int
    """Records that were read for it."""
    next: str | None
    """Where the next page begins; None: there is none."""
    states: tuple[str, ...]
    routes: tuple[str, ...]
    """Those that the application has, to choose from."""
    unread: int
    """Answers whose status could not be compared: they are encrypted."""


def show(view: View) -> RecordsPage:
    """A page of records that fit the filters in the address."""
    query = view.query
    try:
        found = lists.page(
            view.guard.backend, _wanted(view), PAGE, query.text("after"), lists.QUICK_LOOK
        )
    except ConfigurationError as error:
        raise ConsoleRefusal(400, f"{error}.") from None
    rows = tuple(row(each, found.now) for each in found.glimpses)
    routes = tuple(sorted(KnownRoutes(view.guard, view.app).policies))
    return RecordsPage(rows, found.looked, found.after, tuple(State), routes, found.unread)


def row(seen: Glimpse, now: Micros) -> RecordRow:
    origin, terms = whole_origin(seen.origin, seen.terms), seen.terms
    return RecordRow(
        seen.identity.hex(),
        seen.state,
        origin.method,
        origin.path,
        origin.tenant,
        None if terms is None else terms.route,
        None if terms is None else terms.application,
        Moment(seen.created_at, now),
        moment(seen.due_at, now),
        seen.reason,
        seen.size,
        seen.status,
        seen.resource,
    )


def _wanted(view: View) -> lists.RecordFilter:
    query = view.query
    states = tuple(State(each) for each in query.all("state") if each in tuple(State))
    method = query.text("method")
    return lists.RecordFilter(
        states or tuple(State),
        tenant=query.text("tenant"),
        method=None if method is None else method.upper(),
        path=query.text("path"),
        older=age(query.text("older")),
        since=since(query.text("since"), view.now()) if query.text("since") else None,
        route=query.text("route"),
        status=query.text("status"),
        reason=query.text("reason"),
        resource=query.text("resource"),
    )


def find(view: View) -> Any:
    """To the record of a whole key, which comes by POST: no address and no log has it."""
    form = view.form
    key, path = form.get("key", ""), form.text("path")
    if not key or path is None:
        raise ConsoleRefusal(400, "Give the whole key and the path it was used at.")
    address = KeyAddress(form.get("tenant", ""), form.text("method") or "POST", path, key)
    found = view.operator.find(address)
    if found is None:
        raise ConsoleRefusal(404, "No record has this key, path, method and tenant.")
    return Redirect(f"records/{found.case.record.identity.hex()}")
