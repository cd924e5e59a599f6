"""What a command is pointed at: ``module:name``, as servers take their applications."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Final

from semel.cli.output import FAILED, MISUSED, fail, open_guard
from semel.errors import ConfigurationError
from semel.guard import Guard

if TYPE_CHECKING:
    from semel.core.operations.requests import Recalled
    from semel.core.records import Identity
    from semel.operators.operator import Operator


def guard_at(target: str) -> Guard:
    """The guard of an application, say ``shop:guard``."""
    found = at(target)
    if not isinstance(found, Guard):
        raise ConfigurationError(f"{target} is no semel.Guard, but of type {type(found).__name__}")
    return found


def app_at(target: str) -> Any:
    """An ASGI or WSGI application, say ``shop:app``."""
    found = at(target)
    if not callable(found):
        raise ConfigurationError(f"{target} is no application, but of type {type(found).__name__}")
    return found


def at(target: str) -> Any:
    """What ``module:name`` leads to; modules of the working folder come first."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigurationError(f"{target!r} must be written module:name, such as shop:guard")
    found: Any = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module} has no {name!r}")
        found = getattr(found, part)
    return found


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        _set_up_django()
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and f"{module}.".startswith(f"{missing.name}."):
            raise ConfigurationError(
                f"there is no module {module!r} in {here} or among what is installed"
            ) from missing
        raise _broken(module, missing) from missing
    except Exception as error:
        raise _broken(module, error) from error


def _set_up_django() -> None:
    """A project's modules cannot be imported before its applications are loaded."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        import django

        django.setup()


def _broken(module: str, error: Exception) -> ConfigurationError:
    *_, last = extract_tb(error.__traceback__)
    said = " ".join(str(error).split())
    place = f"{last.filename}:{last.lineno}"
    return ConfigurationError(
        f"{module} cannot be imported: {type(error).__name__}: {said} ({place})"
    )


# --- records that people name: by the digits of an identity, or by where a key was used

SHORT: Final = 16
"""Digits of an identity that tables show."""
LEAST: Final = 8
"""Digits that commands take for it, where no other begins so."""


def operator(guard: str | None, store: str | None, app: str | None) -> Operator:
    """Whoever looks after the records that the options name."""
    from semel.cli.targets import app_at
    from semel.operators.operator import Operator

    return Operator(open_guard(guard, store), None if app is None else app_at(app))


def found(operator: Operator, text: str) -> Recalled:
    """The record whose identity is, or begins with, ``text``."""
    recalled = operator.find(identity_of(operator, text))
    return recalled if recalled is not None else fail(_NONE, FAILED)


def identity_of(operator: Operator, text: str) -> Identity:
    """The whole identity, or the only one that begins so."""
    from semel.core.records import Identity
    from semel.operators.records import find_by_prefix

    digits = text.lower()
    if not digits or set(digits) - set("0123456789abcdef") or len(digits) > 64:
        fail("IDENTITY is written in hexadecimal, as the list shows it", MISUSED)
    if len(digits) == 64:
        return Identity(bytes.fromhex(digits))
    if len(digits) < LEAST:
        fail(f"IDENTITY needs {LEAST} digits or more", MISUSED)
    identities = find_by_prefix(operator._guard.backend, digits)
    if len(identities) != 1:
        fail("several records begin so: give more digits" if identities else _NONE, FAILED)
    return identities[0]


_NONE: Final = "there is no such record"
