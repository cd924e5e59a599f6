"""Approvals: acts that wait for a second person, and erasing a tenant."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from semel.console.acts import ROLES, ActPage, confirm, demand, is_confirmed, outcome
from semel.console.requests import ConsoleRefusal
from semel.console.screens.key import PendingAct, facts_of, pending
from semel.console.view import View, identity
from semel.core.frozen import frozen
from semel.operators.approvals import Intent, Irreversible


@frozen
class ApprovalsPage:
    pending: tuple[PendingAct, ...]
    acts: tuple[str, ...]
    """The acts that need a second person here."""
    within: float
    """Seconds that a proposal waits."""


def show(view: View) -> ApprovalsPage:
    rule = view.approvals.rule
    return ApprovalsPage(pending(view), tuple(sorted(rule.acts)), rule.within.total_seconds())


def approve(view: View) -> ActPage:
    """Do what another has proposed; needs the role of the act itself."""
    waiting = _named(view)
    if not is_confirmed(view):
        return confirm(
            *(view, "Approve it?", "Approve, and do it", "approvals"),
            warning=f"{waiting.by} has proposed it: {waiting.reason}",
            facts=(("Act", waiting.act), ("On", waiting.subject), ("Proposed", waiting.at)),
        )
    said = {"by": view.user.name, "reason": view.reason()}
    result = view.approvals.approve(waiting.number, **said)
    return outcome(result, "approvals", _facts_now(view, waiting))


def _facts_now(view: View, waiting: PendingAct) -> tuple[tuple[str, Any], ...]:
    """What the record is now; nothing of an act that is about no record."""
    if waiting.act in (Irreversible.ERASE, Irreversible.DROP):
        return ()
    return facts_of(view, identity(waiting.subject))


def decline(view: View) -> ActPage:
    """Put an end to a proposal."""
    waiting = _named(view)
    said = {"by": view.user.name, "reason": view.reason()}
    return outcome(view.approvals.decline(waiting.number, **said), "approvals")


def _named(view: View) -> PendingAct:
    number = view.form.get("number", "")
    found = next((each for each in pending(view) if each.number == number), None)
    if found is None:
        raise ConsoleRefusal(404, "There is no such proposal, or it is decided, or its time is up.")
    demand(view, ROLES[Irreversible(found.act)])
    return found


def erase(view: View) -> ActPage:
    """Erase what is kept of a tenant."""
    tenant = view.form.get("tenant", "")
    if not tenant:
        raise ConsoleRefusal(400, "Say whose records: the tenant.")
    if not tenant.isprintable():  # a form may change line breaks: it could be another's name
        raise ConsoleRefusal(400, "This name has characters that a form may change: use the CLI.")
    if not is_confirmed(view):
        return confirm(
            *(view, "Erase what is kept of this tenant?", "Erase", "tenants"),
            warning="Answers, requests, journals, keys, paths and digests are gone for good. "
            "Retries of what was erased are refused (410). The whole table is read, beside the "
            "pages of the console.",
            facts=(("Tenant", tenant),),
            sent=(("once", token_hex(16)),),
        )
    said = {"by": view.user.name, "reason": view.reason()}
    intent = Intent(Irreversible.ERASE, tenant, view.form.get("once", "")[:64])
    result = view.approvals.act(intent, **said)
    return outcome(result, "tenants", (("Tenant", tenant),))
