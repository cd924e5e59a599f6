"""What a contract promises, as data: one TOML file for each profile, with where it is written."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from semel.check.json_values import is_array
from semel.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class CheckProfile:
    """What is expected of an API. An empty tuple, or None: the contract leaves it open."""

    name: str
    title: str
    source: str = ""
    header: str = "Idempotency-Key"
    required: bool | None = None
    missing: tuple[int, ...] = (400,)
    malformed: tuple[int, ...] = (400,)
    longest: int | None = None
    """Longer keys are refused."""
    quoted: bool | None = None
    """Whether ``"k"`` and ``k`` are the same key."""
    mismatch: tuple[int, ...] = ()
    in_flight: tuple[int, ...] = ()
    retry_after: bool | None = None
    """Whether an answer in flight names a pause."""
    canonical: bool | None = None
    """Whether JSON with its members in another order is the same request."""
    keeps_client_errors: bool | None = None
    keeps_server_errors: bool | None = None
    markers: tuple[str, ...] = ("Idempotent-Replayed", "Idempotency-Replayed")
    marks: bool | None = None
    """Whether replays carry a marker."""
    citations: Mapping[str, str] = field(default_factory=dict[str, str])
    """For what is expected: where it is said, by the names above."""


DISCOVERY: Final = CheckProfile(
    "discovery", "Whatever the API does", quoted=True, canonical=True, malformed=(), missing=()
)
"""Expects nothing that would stop a probe from finding out."""


def profile(name: str) -> CheckProfile:
    """The profile of that name."""
    known = profile_names()
    if name not in known:
        raise ConfigurationError(f"there is no profile {name!r}; there are {', '.join(known)}")
    text = (files("semel.check") / "profiles" / f"{name}.toml").read_text("utf-8")
    return read_profile(tomllib.loads(text))


def profile_names() -> list[str]:
    found = (files("semel.check") / "profiles").iterdir()
    return sorted(each.name.removesuffix(".toml") for each in found if each.name.endswith(".toml"))


def read_profile(document: Mapping[str, Any]) -> CheckProfile:
    """A profile from its document; an unknown name is an error."""
    expect: Mapping[str, Any] = document.get("expect", {})
    known = set(CheckProfile.__dataclass_fields__)
    if odd := sorted(set(expect) - known):
        raise ConfigurationError(f"a profile knows nothing of {', '.join(odd)}")
    lists: dict[str, Any] = {
        key: tuple(value) if is_array(value) else value for key, value in expect.items()
    }
    return CheckProfile(
        name=document["name"],
        title=document["title"],
        source=document.get("source", ""),
        citations=document.get("citations", {}),
        **lists,
    )
