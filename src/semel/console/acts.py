"""Acts in two steps: a page that says exactly what will be done, and one that says what came of it.

The first form of an act is sent without ``confirmed``. Its answer is a page with the same fields,
hidden, and the list that was frozen with them; only sent again from there is anything done. So an
act needs no JavaScript, and what comes to fit a filter between the two steps is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from semel.console.requests import ConsoleRefusal
from semel.console.roles import Role
from semel.console.times import moment
from semel.console.view import View
from semel.core.frozen import frozen
from semel.operators.approvals import ActResult, Irreversible

MOST: Final = 1000
"""Things that one act is about, at most."""
ROLES: Final = {
    Irreversible.EVICT: Role.CUSTODIAN,
    Irreversible.FREE: Role.CUSTODIAN,
    Irreversible.ERASE: Role.CUSTODIAN,
    Irreversible.ABSENT: Role.OPERATOR,
    Irreversible.DROP: Role.OPERATOR,
}
"""The role that each irreversible act needs, of who proposes it and of who approves it."""


@frozen
class ActItem:
    """One thing that an act is about. ``done`` None: it is not done yet, or waits for another."""

    name: str
    link: str | None = None
    said: str = ""
    done: bool | None = None
    value: str = ""
    """What the form sends for it, where that is more than its name."""


@frozen
class ActPage:
    """An act that is to be confirmed (``question``), or what came of it."""

    back: str
    """The path of the page to go back to."""
    question: str | None = None
    warning: str = ""
    button: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    """What the form sends again, hidden."""
    facts: tuple[tuple[str, Any], ...] = ()
    items: tuple[ActItem, ...] = ()
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """What is not done yet: a second person must approve it, or it is under way."""
    proposal: str | None = None
    started: bool = False
    """It is under way; the audit will say when it is done."""
    status: int = 200
    """Of the answer: 202 where nothing is done yet, 409 or 403 where nothing was."""


def is_confirmed(view: View) -> bool:
    return view.form.get("confirmed") == "yes"


def confirm(
    view: View,
    question: str,
    button: str,
    back: str,
    *,
    sent: tuple[tuple[str, str], ...] = (),
    **said: Any,
) -> ActPage:
    """The page that asks, with all that was sent. Nothing is done yet: a program reads 202."""
    given = tuple(pair for pair in view.form.pairs if pair[0] not in ("confirmed", "item", "every"))
    items: Iterable[ActItem] = said.get("items", ())
    frozen_list = tuple(("item", each.value or each.name) for each in items)
    fields = (*given, *sent, *frozen_list, ("confirmed", "yes"))
    said["facts"] = (*said.get("facts", ()), ("Reason", view.reason()), ("By", view.user.name))
    return ActPage(back, question, button=button, fields=fields, status=202, **said)


def outcome(result: ActResult, back: str, facts: tuple[tuple[str, Any], ...] = ()) -> ActPage:
    """What one act came to, or that it waits for a second person."""
    proposal = result.proposal
    if proposal is not None:
        until = moment(proposal.until, proposal.at)
        facts = (*facts, ("Act", proposal.intent.act.value), ("Decided until", until))
        said = "Nothing is done yet: a second person must approve it."
        return ActPage(back, waiting=(said,), facts=facts, proposal=proposal.number, status=202)
    if result.started:
        said = (
            "It goes on by itself, one tenant after the other. It is done when the audit says so."
        )
        return ActPage(back, waiting=(said,), facts=facts, started=True, status=202)
    if result.done:
        return ActPage(back, done=(result.said,), facts=facts)
    status = 403 if result.forbidden else 409
    return ActPage(back, failed=(f"Not done: {result.said}.",), facts=facts, status=status)


def outcomes(items: Iterable[ActItem], back: str) -> ActPage:
    """What came of each. Where a part was done it is 200, and says which part."""
    items = tuple(items)
    done, failed, waiting = ([each.done for each in items].count(is_) for is_ in _ENDS)
    of = f"of {len(items):,}."
    return ActPage(
        back,
        items=items,
        done=(f"Done: {done:,} {of}",) if done else (),
        failed=(f"Not done: {failed:,} {of}",) if failed else (),
        waiting=(f"To be approved by a second person: {waiting:,} {of}",) if waiting else (),
        status=200 if done else 202 if waiting else 409,
    )


_ENDS: Final = (True, False, None)
"""Done, refused, and waiting for a second person."""


def chosen(view: View) -> tuple[str, ...]:
    """The names that were selected, or agreed to; each once."""
    items = tuple(dict.fromkeys(view.form.all("item")))
    if not items:
        raise ConsoleRefusal(400, "Nothing is selected.")
    if len(items) > MOST:
        raise ConsoleRefusal(400, f"One act is about {MOST:,} things at most.")
    return items


def demand(view: View, role: Role) -> None:
    """Where the role depends on what was sent; `routes` has checked the least one."""
    if not view.may(role):
        highest = "nobody" if view.user.highest is None else view.user.highest.value
        raise ConsoleRefusal(403, f"This needs the role {role.value}; you are {highest}.")
