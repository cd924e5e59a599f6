"""A server's contract: reads it, and tells where the key of a call goes and how long it counts.

The format is in docs/reference/contract.md. What a contract does not say clearly is an error, and
nothing is sent: a key in the wrong place is no key, and one that a server has forgotten is a new
request.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from semel.client import model
from semel.client.call import Budget
from semel.client.errors import ContractError
from semel.client.model import CallAnswer, KeyTerms, LogicalCall
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.request.key_places import BodyField, key_places
from semel.core.request.path_pattern import foreign_pattern
from semel.errors import ConfigurationError

VERSION: Final = 1
FRESH: Final = 300.0
"""Seconds after which a contract is read again: servers change."""
_LONGEST: Final = 10**12
"""Seconds; a longer lifetime is a mistake."""
_MOST_BYTES: Final = 2**20
"""Of a contract; a route's promises are less than a kilobyte."""
_DEEPEST: Final = 100
"""Steps to a key in the body; what is much deeper cannot be written as JSON."""
_TAKEN_HEADERS: Final = {
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
}
"""Headers that say something else. A caller's credentials would be taken for its key, and the
journal keeps keys."""
_PASSING: Final = frozenset({408, 425, 429})


@frozen
class ServerContract:
    """A contract that was read, at that time of the monotonic clock."""

    routes: tuple[tuple[str, re.Pattern[str], Any], ...]
    default: Any
    read_at: float

    def promises(self, method: str, url: str) -> Any:
        """What is promised for a call; an error if nothing is."""
        path = urlsplit(url).path or "/"
        if "%2f" in path.lower():
            raise ContractError(f"{path}: an escaped slash leaves in doubt which route it is")
        fitting = (
            promises
            for named, pattern, promises in self.routes
            if named in ("*", method) and pattern.fullmatch(unquote(path))
        )
        found: Any = next(fitting, self.default)
        if found is None or method not in _a(list, found, "methods"):
            raise ContractError(f"the server's contract promises nothing for {method} {path}")
        return found


def read_contract(call: LogicalCall, budget: Budget, started: float) -> Flow[ServerContract]:
    """Get the contract at the address of ``call``; failures that pass are tried again."""
    error: Exception | None = None
    for attempt in range(budget.tries):
        tried = yield from ask(model.AskStatus(call, call.url))
        if isinstance(tried.result, CallAnswer):
            status = tried.result.status
            if status < 500 and status not in _PASSING:
                return parsed(tried.result, tried.now)
        else:
            error = tried.result.error
            if tried.result.is_bug:
                raise error
        pause = budget.pause(attempt, tried.now - started, None)
        if pause is None or attempt + 1 == budget.tries:
            break
        yield from ask(model.Sleep(*pause))
    raise ContractError(f"{call.url} cannot be read", unreadable=True) from error


def parsed(answer: CallAnswer, now: float) -> ServerContract:
    """The contract in an answer; an error if it is none, or one of another version."""
    if answer.status != 200:
        raise ContractError(f"the server answered {answer.status}", unreadable=True)
    if len(answer.body) > _MOST_BYTES:
        said = f"the server's contract has more than {_MOST_BYTES} bytes"
        raise ContractError(said, unreadable=True)
    try:
        document = json.loads(answer.body)
        if _a(int, document, "version") != VERSION:
            raise ContractError(f"it is not of version {VERSION}")
        routes = [
            (_a(str, each, "method"), foreign_pattern(_a(str, each, "path")), each)
            for each in _a(list, document, "routes")
        ]
        return ServerContract(tuple(routes), document.get("default"), now)
    except (ValueError, RecursionError, ConfigurationError, ContractError) as error:
        said = f"the server's contract cannot be understood: {error}"
        raise ContractError(said, unreadable=True) from error


def terms_of(
    promises: Any, key_in: str | BodyField | None, quoted: bool | None, budget: Budget
) -> KeyTerms:
    """The terms of a call, from its route's promises; what the caller chose must agree."""
    key, lifetime = _a(dict, promises, "key"), _a(int, promises, "lifetime")
    if lifetime > _LONGEST:
        raise ContractError(f"the server's contract has a lifetime of {lifetime} seconds")
    within = budget.within.total_seconds()
    if lifetime <= within:
        raise ContractError(
            f"the server keeps answers for {lifetime} seconds, and the budget of a call is "
            f"{within:g}: a late try could be a second request. Give a shorter budget"
        )
    place = _place(_a(list, key, "places"), key_in)
    quoted_only = _a(bool, key, "quoted_only")
    if quoted_only and quoted is False:
        raise ContractError("the server takes quoted keys only, and quoted=False was given")
    return KeyTerms(place, quoted_only if quoted is None else quoted, lifetime)


def _place(places: list[Any], chosen: str | BodyField | None) -> str | BodyField:
    """The first place that can be used, or the chosen one, if the server may look there."""
    readable = [_read_place(each) for each in places]
    usable = [place for place in readable if place is not None]
    if chosen is None and usable:
        return usable[0]
    wanted = None if chosen is None else KeyTerms(chosen).place
    if chosen is not None and (
        len(usable) < len(places) or wanted in [KeyTerms(place).place for place in usable]
    ):
        return chosen
    raise ContractError(
        "the server's contract names no place for the key that can be used; give key_in="
        if chosen is None
        else f"key_in= is {wanted}, and the server's contract does not name that place"
    )


def _read_place(place: Any) -> str | BodyField | None:
    """A header or a place in the body; None for rules that are not told."""
    kind = _a(str, place, "in")
    if kind == "request":
        return None
    try:
        if kind == "header":
            header: str = _a(str, place, "name")
            key_places(header)  # or an error
            if header.lower() in _TAKEN_HEADERS:
                raise ContractError(f"the server's contract has the key in {header}")
            return header
        if kind == "body":
            field = BodyField(_a(str, place, "pointer"))
            if len(field.steps) > _DEEPEST:
                raise ContractError("the server's contract has the key too deep in the body")
            return field
    except ConfigurationError as error:
        raise ContractError(f"the server's contract has a wrong place: {error}") from error
    raise ContractError(f"the server's contract has a place of an unknown kind, {kind!r}")


def _a(kind: type[Any], document: Any, member: str) -> Any:
    """A member, of exactly that type: True is no number."""
    held: Any = cast("Any", document).get(member) if isinstance(document, dict) else None
    if type(held) is not kind:
        raise ContractError(f"the server's contract has no usable {member!r}")
    return held
