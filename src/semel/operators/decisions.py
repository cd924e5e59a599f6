"""What a person decides about an unknown outcome: the evidence it makes, and what comes of it."""

from __future__ import annotations

import json

from semel.core.frozen import frozen
from semel.core.records import Case, Response
from semel.core.unknown import settle_unknown
from semel.core.unknown.evidence import Evidence, Happened
from semel.errors import ConfigurationError


@frozen
class StatedAnswer:
    """What a person says that it came to; all of it may be missing."""

    status: int | None = None
    body: bytes | None = None
    """The answer its client should have got, or the result of its call as JSON."""
    content_type: str = "application/json"
    provider_id: str | None = None


class Incomplete(ConfigurationError):
    """What was stated is not enough to settle this record by it."""


def happened(case: Case, stated: StatedAnswer, call: str | None = None) -> Happened:
    """The evidence that it happened. ``call``: the operation's call, where it is settled anew."""
    call = call or settle_unknown.call_in_doubt(case)
    if call is None and case.journal is not None and stated.status is None:
        raise Incomplete(
            "no call of the operation is in doubt: end it with the answer, its status and body, "
            "or settle one of its calls anew"
        )
    if call is not None and stated.body is None:
        raise Incomplete(f"the operation goes on with the result of {call!r}: give it")
    name, body = stated.provider_id, stated.body
    if body is not None and (call is not None or case.origin.method == settle_unknown.ONCE):
        try:
            return Happened(json.loads(body), name)
        except ValueError as error:
            raise Incomplete(f"JSON is needed here, the result of a function: {error}") from None
    if body is None:
        response = None if stated.status is None else Response(stated.status, (), b"")
        return Happened(response, name)
    headers = ((b"content-type", stated.content_type.encode("latin-1", "replace")),)
    return Happened(Response(stated.status or 200, headers, body), name)


def consequence(case: Case, evidence: Evidence, call: str | None = None) -> str:
    """What settling by it will do, in one sentence or two."""
    if call is not None and call != settle_unknown.call_in_doubt(case):
        return f"what {call!r} came to is forgotten, and what you say now holds instead."
    if not isinstance(evidence, Happened):
        return "did not happen and no longer can. The next retry runs it."
    if settle_unknown.call_in_doubt(case) is not None:
        return "its call happened. The operation goes on behind it."
    if evidence.result is None:
        return "happened. Retries learn that it did, without an answer (409)."
    return "happened. Retries get the answer that you give."
