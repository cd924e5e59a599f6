"""Signs and verifies webhooks by Standard Webhooks, for the outbox and the inbox.

The signature covers message id, timestamp and body: none of them can be changed, and an old message
cannot be sent again. See https://www.standardwebhooks.com, "Signature scheme".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from semel.errors import ConfigurationError

PREFIX: Final = "whsec_"
SHORTEST: Final = 24
"""Bytes of a secret; the standard asks for 24 to 64."""

TOLERANCE: Final = timedelta(minutes=5)
"""How far a message's clock may be from ours, before and behind."""

_VERSION: Final = "v1,"
_MOST_SIGNATURES: Final = 16
"""How many are compared: a stranger's header must not cost any number of comparisons."""


def secret(given: str | bytes) -> bytes:
    """The bytes of a secret, given as ``whsec_<base64>`` or as the bytes themselves."""
    if isinstance(given, bytes):
        made = given
    elif not given.startswith(PREFIX):
        raise ConfigurationError(
            f"the secret of a webhook is written {PREFIX}<base64>, or as bytes"
        )
    else:
        try:
            made = base64.b64decode(given[len(PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            raise ConfigurationError(f"what follows {PREFIX} in a secret must be base64") from None
    if len(made) < SHORTEST:
        raise ConfigurationError(f"the secret of a webhook must have {SHORTEST} bytes or more")
    return made


def secrets(given: str | bytes | Iterable[str | bytes]) -> tuple[bytes, ...]:
    """One secret, or several while they are exchanged."""
    made = tuple(map(secret, (given,) if isinstance(given, str | bytes) else given))
    if not made:
        raise ConfigurationError("a webhook needs a secret")
    return made


def sign(secrets: Sequence[bytes], message: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``: one signature for each secret."""
    return " ".join(f"{_VERSION}{_signature(each, message, timestamp, body)}" for each in secrets)


def verify(
    secrets: Sequence[bytes],
    message: str,
    timestamp: str,
    signature: str,
    body: bytes,
    *,
    now: float,
    tolerance: timedelta = TOLERANCE,
) -> str | None:
    """None when one of ``secrets`` signed it lately; else why not, for the log and not the sender.

    ``message``, ``timestamp`` and ``signature`` are the three headers as they came; ``now`` is in
    seconds since 1970.
    """
    if not message or not timestamp or not signature:
        return "a header of the signature is missing"
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12:
        return "the timestamp is no number"
    if abs(now - int(timestamp)) > tolerance.total_seconds():
        return "the timestamp is too far from now"
    expected = [_signature(each, message, int(timestamp), body).encode() for each in secrets]
    # Every pair is compared, each in constant time: how long it takes tells a forger nothing.
    found = False
    for given in signature.split(" ")[:_MOST_SIGNATURES]:
        if given.startswith(_VERSION):
            theirs = given[len(_VERSION) :].encode("utf-8", "surrogateescape")
            for ours in expected:
                found |= hmac.compare_digest(ours, theirs)
    return None if found else "no signature fits"


def _signature(secret: bytes, message: str, timestamp: int, body: bytes) -> str:
    head = f"{message}.{timestamp}.".encode("utf-8", "surrogateescape")
    return base64.b64encode(hmac.digest(secret, head + body, hashlib.sha256)).decode()
