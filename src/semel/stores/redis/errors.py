"""What can go wrong between here and Redis, and what it means. Judged here and only here."""

from __future__ import annotations

from enum import Enum
from typing import Final

import hiredis

from semel.errors import ConfigurationError, SemelError, StoreCorrupt, StoreUnavailable
from semel.stores.redis.settings import NodeAddress


class Remedy(Enum):
    """What may help."""

    NONE = "nothing"
    TEXT = "send the script itself"
    MOVED = "the bucket lives elsewhere"
    ASK = "ask elsewhere, this once"
    LATER = "wait, and look who is there"
    AGAIN = "open a new link"


class RedisFault(Exception):
    """One call failed.

    ``doubt``: it may have been applied all the same. ``broken``: the link is of no more use.
    """

    def __init__(
        self,
        message: str,
        remedy: Remedy = Remedy.NONE,
        *,
        doubt: bool = False,
        broken: bool = False,
        address: NodeAddress | None = None,
        code: str = "",
    ) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.doubt = doubt
        self.broken = broken
        self.address = address
        self.code = code


_REMEDIES: Final = {
    "NOSCRIPT": Remedy.TEXT,
    "TRYAGAIN": Remedy.LATER,
    "CLUSTERDOWN": Remedy.LATER,
    "LOADING": Remedy.LATER,
    "MASTERDOWN": Remedy.LATER,
    "READONLY": Remedy.AGAIN,
}
"""All of them mean: not executed."""

_FORBIDDEN: Final = ("NOPERM", "NOAUTH", "WRONGPASS")
_IMPOSSIBLE: Final = ("WRONGTYPE",)


def refused(error: hiredis.ReplyError, asked: NodeAddress) -> RedisFault:
    """The server answered with an error: before the script began, unless the script failed."""
    text = str(error)
    code, _, rest = text.partition(" ")
    if code in ("MOVED", "ASK"):
        return _redirected(code, rest, asked)
    remedy = _REMEDIES.get(code, Remedy.NONE)
    failed = "user_script" in text or "script: " in text
    return RedisFault(
        text, remedy, doubt=failed, broken=remedy is Remedy.AGAIN, code="SCRIPT" if failed else code
    )


def _redirected(code: str, rest: str, asked: NodeAddress) -> RedisFault:
    """``3999 127.0.0.1:6381``; an empty host is that of the one who says so."""
    host, _, port = rest.split(" ")[-1].rpartition(":")
    where = NodeAddress(host.strip("[]") or asked.host, int(port))
    remedy = Remedy.MOVED if code == "MOVED" else Remedy.ASK
    return RedisFault(f"{code} {rest}", remedy, address=where, code=code)


def not_connected(error: Exception, where: NodeAddress) -> RedisFault:
    said = str(error) or type(error).__name__
    return RedisFault(
        f"cannot connect to {where}: {said}", Remedy.LATER, broken=True, code="CONNECT"
    )


def severed(sent: bool, why: str = "the server hung up") -> RedisFault:
    return RedisFault(why, Remedy.AGAIN, doubt=sent, broken=True, code="LINK")


def garbled(error: hiredis.ProtocolError, *, sent: bool = True) -> RedisFault:
    return severed(sent, f"the server speaks another protocol: {error}")


def timed_out(sent: bool) -> RedisFault:
    return RedisFault("no answer within the time limit", doubt=sent, broken=sent, code="TIME")


def not_replicated(got: object, wanted: int) -> RedisFault:
    return RedisFault(f"{got} of {wanted} replicas have it", doubt=True, code="WAIT")


def verdict(fault: RedisFault, *, doubt: bool) -> SemelError:
    """What the caller of the store is told."""
    if fault.code in _FORBIDDEN:
        return ConfigurationError(f"Redis refuses this user: {fault}")
    if fault.code in _IMPOSSIBLE or fault.code == "SCRIPT":
        return StoreCorrupt(f"Redis refused what must be possible: {fault}")
    return StoreUnavailable(f"Redis: {fault}", applied=None if doubt else False)
