"""What can go wrong between semel and Redis, and what it means: decided in this module only."""

from __future__ import annotations

from enum import Enum
from typing import Final

import hiredis

from semel.errors import ConfigurationError, SemelError, StoreCorrupt, StoreUnavailable
from semel.stores.redis.settings import NodeAddress


class Remedy(Enum):
    """What may help after a fault."""

    NONE = "nothing"
    SEND_SCRIPT = "send the text of the script"
    MOVED = "another node serves the bucket"
    ASK = "ask another node, this once"
    WAIT = "wait, and refresh the topology"
    RECONNECT = "open a new connection"


class RedisFault(Exception):
    """One call failed.

    ``doubt``: it may have been applied all the same. ``broken``: the connection must not be used
    again. ``address``: the node to ask instead.
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
    "NOSCRIPT": Remedy.SEND_SCRIPT,
    "TRYAGAIN": Remedy.WAIT,
    "CLUSTERDOWN": Remedy.WAIT,
    "LOADING": Remedy.WAIT,
    "MASTERDOWN": Remedy.WAIT,
    "READONLY": Remedy.RECONNECT,
}
"""Redis sends each of these codes before it executes anything."""


def from_reply(error: hiredis.ReplyError, asked: NodeAddress) -> RedisFault:
    """The server replied with an error: nothing was executed, unless a script failed half way."""
    text = str(error)
    code, _, rest = text.partition(" ")
    if code in ("MOVED", "ASK"):  # MOVED 3999 127.0.0.1:6381; without a host it is the one asked
        host, _, port = rest.split(" ")[-1].rpartition(":")
        node = NodeAddress(host.strip("[]") or asked.host, int(port))
        return RedisFault(text, Remedy[code], address=node, code=code)
    remedy = _REMEDIES.get(code, Remedy.NONE)
    failed = "user_script" in text or "script: " in text
    broken, code = remedy is Remedy.RECONNECT, "SCRIPT" if failed else code
    return RedisFault(text, remedy, doubt=failed, broken=broken, code=code)


def not_connected(error: Exception, address: NodeAddress) -> RedisFault:
    text = f"cannot connect to {address}: {str(error) or type(error).__name__}"
    return RedisFault(text, Remedy.WAIT, broken=True, code="CONNECT")


def disconnected(sent: bool, why: str = "the server hung up") -> RedisFault:
    return RedisFault(why, Remedy.RECONNECT, doubt=sent, broken=True, code="LINK")


def not_redis(error: hiredis.ProtocolError) -> RedisFault:
    return disconnected(True, f"the server speaks another protocol: {error}")


def timed_out(sent: bool) -> RedisFault:
    return RedisFault("no answer within the time limit", doubt=sent, broken=sent, code="TIME")


def not_served(slot: int) -> RedisFault:
    text = f"nobody in the cluster serves slot {slot}"
    return RedisFault(text, Remedy.WAIT, code="CLUSTERDOWN")


def store_error(fault: RedisFault, *, doubt: bool) -> SemelError:
    """The exception that the caller of the store gets."""
    if fault.code in ("NOPERM", "NOAUTH", "WRONGPASS"):
        return ConfigurationError(f"Redis refuses this user: {fault}")
    if fault.code in ("WRONGTYPE", "SCRIPT"):
        return StoreCorrupt(f"Redis refused what must be possible: {fault}")
    return StoreUnavailable(f"Redis: {fault}", applied=None if doubt else False)
