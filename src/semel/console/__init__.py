"""The console: see every key, and decide with evidence. Mounted into an application, or standalone.

console    one guard's console, for ASGI and WSGI servers: who asks, which page, which errors
routes     every screen and action with the role it needs: the one place that says so
view       what a screen and an action are, and what they are given
screens/   one module for each screen
acts       the pages of an act: what will be done, and what came of it
roles      who uses it, and what they may do
requests   a request, and what is refused before any page sees it
responses  pages, JSON and files, each with the headers that keep browsers strict
render     templates, in which every text is escaped and made visible
charts     the shapes of an SVG, drawn by the server
diagram    the states of a record as a drawing
cache      what many people look at is made once for all of them
budget     a mounted console pauses, so that requests get on
times      times and durations as people read them
login      how people log in to a standalone console: token, password, proxy
sessions, users    its sessions, and the file of its users
standalone where it listens, and what it must be told before it lets others in
templates/, static/    HTML, one style sheet, one script: no build step, nothing from elsewhere

Add a screen in three steps:

1. A module in `screens/` with a function of a `View`. It returns data, never HTML: a frozen class
   or a dict of texts, numbers, `Moment` and `Span`, lists of them. That is also its JSON. It reads
   filters from ``view.query`` and does its work with ``view.operator`` or ``view.guard.backend``.
   It may block: it runs in a thread of the console's own. What cannot be done is raised as
   ``ConsoleRefusal(status, "A sentence.")``.
2. A template that extends ``base.html`` and prints ``data``. `parts.html` has what screens share:
   states, links to records, empty states, fields, the reason of an act. Links are made with
   ``url("records", state="unknown")``, or ``again(tenant="a")`` for this page with another filter.
   Texts of strangers go through ``|short``, times through ``|ago``. No style attribute and no
   script: browsers refuse them here.
3. A line in `routes`: ``Screen(path, title, function, template, role)``.

An action is a function too: ``Action(path, title, function, role)``. It reads ``view.form``, says
``by=view.user.name, reason=view.reason()`` to the operator, and returns data for its template, or a
``Redirect("records/…")``; `acts` has the pages that ask and tell, and the status of an answer. Its
form is as plain as ``<form method="post" action="{{ url("unknown/settle") }}">``. Origin and role
are checked before it is called.
"""

from semel.console.console import Console
from semel.console.roles import Authorize, ConsoleUser, Role

__all__ = ["Authorize", "Console", "ConsoleUser", "Role"]
