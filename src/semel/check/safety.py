"""Where requests may be sent. A check makes real requests with real effects."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, urlsplit

from semel.errors import ConfigurationError

PAYMENT_HOSTS: Final = (
    *("stripe.com", "paypal.com", "adyen.com", "squareup.com", "braintreegateway.com"),
    *("checkout.com", "mollie.com", "worldpay.com", "klarna.com", "wise.com"),
)
"""Providers whose live APIs move money; their test modes have the same hosts, or ones beside."""


def allowed_origin(url: str, allowed: Collection[str]) -> SplitResult:
    """The parts of a URL that may be checked; a `ConfigurationError` for any other."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError as error:
        raise ConfigurationError(f"{url!r:.200} is no URL: {error}") from error
    if not known or not parts.hostname:
        raise ConfigurationError(f"{url!r:.200} is no http or https URL: it begins with http://")
    if parts.username or parts.password:
        raise ConfigurationError("give credentials with --as, not in the URL, which is reported")
    host = parts.hostname.lower()
    if is_loopback(host):
        return parts
    if host not in {each.lower() for each in allowed}:
        raise ConfigurationError(
            f"{host} is not this machine, and the check sends requests that take effect. "
            f"If you may do that there, say so: --i-may {host}. {reminder(host)}".rstrip()
        )
    return parts


def reminder(host: str) -> str:
    """What to think of before a payment provider is sent requests; of other hosts nothing."""
    if not any(host == each or host.endswith(f".{each}") for each in PAYMENT_HOSTS):
        return ""
    return f"{host} belongs to a payment provider: use its test mode and test keys."


def is_loopback(host: str) -> bool:
    """Whether requests to the host stay on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
