"""Every screen and every action, with the role it needs: the one place that says so.

To add a screen: a module in `screens/` with a function of a `View`, a template, and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from semel.console.requests import ConsoleRefusal
from semel.console.roles import Role
from semel.console.screens import (
    approvals,
    audit,
    coverage,
    doctor,
    in_flight,
    key,
    mismatches,
    outbox,
    overview,
    records,
    tenants,
    unknown,
)
from semel.console.view import Action, Screen

SCREENS: Final = (
    Screen("", "Overview", overview.show, "overview.html", refresh=15, shared=True),
    Screen("unknown", "Unknown", unknown.show, "unknown.html", refresh=30, shared=True),
    Screen("unknown/{identity}", "Decide", unknown.decide, "decide.html", menu=False),
    Screen("outbox", "Dead letters", outbox.show, "outbox.html", refresh=30, shared=True),
    Screen("in-flight", "In flight", in_flight.show, "in_flight.html", refresh=5, shared=True),
    Screen("records", "Records", records.show, "records.html", shared=True),
    Screen("records/{identity}", "One key", key.show, "key.html", menu=False),
    Screen("mismatches", "Mismatches", mismatches.show, "mismatches.html", shared=True),
    Screen("approvals", "Approvals", approvals.show, "approvals.html", refresh=30),
    Screen("tenants", "Tenants", tenants.show, "tenants.html", shared=True),
    Screen("routes", "Routes", coverage.show, "routes.html"),
    Screen("audit", "Audit", audit.show, "audit.html"),
    Screen("doctor", "Doctor", doctor.show, "doctor.html"),
)
"""In the order of the navigation."""

ACTIONS: Final = (
    # Nothing is changed: it is sent by POST so that no address and no log has the key.
    Action("records/find", "Find a key", records.find, Role.VIEWER),
    Action("records/{identity}/evict", "Free a key", key.evict, Role.CUSTODIAN),
    Action(
        "records/{identity}/contents", "Contents", key.contents, Role.CUSTODIAN, "contents.html"
    ),
    Action("unknown/probe", "Ask probes", unknown.probe_many, Role.OPERATOR),
    Action("unknown/{identity}/look", "Decide", unknown.look, Role.OPERATOR, "decide.html"),
    Action("unknown/{identity}/probe", "Ask its probe", unknown.probe, Role.OPERATOR),
    Action("unknown/{identity}/settle", "Settle", unknown.settle, Role.OPERATOR),
    Action("unknown/{identity}/bury", "Give up", unknown.bury, Role.OPERATOR),
    Action("unknown/{identity}/free", "Free a key", unknown.free, Role.CUSTODIAN),
    Action("outbox/retry", "Try again", outbox.retry, Role.OPERATOR),
    Action("outbox/drop", "Delete effects", outbox.drop, Role.OPERATOR),
    # The role of the act itself is asked for as well, when the proposal is known.
    Action("approvals/approve", "Approve", approvals.approve, Role.OPERATOR),
    Action("approvals/decline", "Decline", approvals.decline, Role.OPERATOR),
    Action("tenants/erase", "Erase a tenant", approvals.erase, Role.CUSTODIAN),
)


def find(path: str, method: str) -> tuple[Screen | Action, Mapping[str, str]]:
    """The screen or action at a path, and what the path names.

    Where both have the path, POST is the action's.
    """
    fitting = [
        (each, match.groupdict())
        for each in (*ACTIONS, *SCREENS)
        if (match := _pattern(each.path).fullmatch(path)) is not None
    ]
    if not fitting:
        raise ConsoleRefusal(404, "There is no such page.")
    return next((each for each in fitting if method in each[0].methods), fitting[0])


@cache
def _pattern(path: str) -> re.Pattern[str]:
    """An identity is its digits; any other part is nothing that could be a path."""
    parts = [
        f"(?P<{part[1:-1]}>{_PARTS.get(part, _PART)})" if part.startswith("{") else re.escape(part)
        for part in path.split("/")
    ]
    return re.compile("/".join(parts))


_PARTS: Final = {"{identity}": "[0-9a-f]{64}"}
_PART: Final = "[0-9A-Za-z_-][0-9A-Za-z._-]*"
