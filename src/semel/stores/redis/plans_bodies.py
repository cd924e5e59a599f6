"""How bodies are put into a Redis beside another store, and got: plain commands, no scripts."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from semel.core.operations.requests import StoreOperation
from semel.stores.body_cache import GetBody, PutBody
from semel.stores.redis.keys import Keys, bucket_of
from semel.stores.redis.plans import Call, Make, Plan

_SUM: Final = 16


def _get(op: GetBody, keys: Keys) -> Plan[bytes | None]:
    name = keys.body(op.identity, op.fence)
    (found,) = yield (Call(bucket_of(op.identity), (b"GET", name)),)
    if type(found) is not bytes or _sum(found[_SUM:]) != found[:_SUM]:
        return None
    return found[_SUM:]


def _put(op: PutBody, keys: Keys) -> Plan[None]:
    name, kept = keys.body(op.identity, op.fence), _sum(op.body) + op.body
    words = (b"SET", name, kept, b"EX", op.seconds)
    yield (Call(bucket_of(op.identity), words),)


def _sum(body: bytes) -> bytes:
    return sha256(body).digest()[:_SUM]


BODIES: Final[Mapping[type[StoreOperation[Any]], Make]] = {GetBody: _get, PutBody: _put}
