"""What semel reads of HTTP clients' insides is what was read in the versions it names.

A newer client fails here first. Read the functions that changed: can any of them send a request a
second time, and can that still be seen? Then raise the bound, and note the new digest.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType

import pytest

from semel.core.recovery.client_internals import (
    ALL,
    CONNECTING,
    PREPARING,
    READ,
    TRIES,
    WAYS,
    Place,
    version,
)
from semel.core.recovery.was_sent import KNOWN

NOTED = {
    "aiohttp": ("3.14.5", "30e0837dab255e85"),
    "httpcore": ("1.0.9", "5a4ee21562cbc6ea"),
    "httpcore2": ("2.16.0", "9676b2e49e2ed412"),
    "httpx": ("0.28.1", "d00420b1472a1bf1"),
    "httpx2": ("2.16.0", "1b924d00e043e8e5"),
    "requests": ("2.34.2", "f8469ef84b7dc68f"),
    "urllib3": ("2.8.0", "5e981a1ba57f6375"),
}
"""The versions that were read last, and the digests of their modules."""
VARIABLES = {
    "_history": {"history"},
    "_history_of_aiohttp": {"history", "method", "retry_persistent_connection"},
    "_noted_by_pool": {"retries"},
    "_noted_by_pools": {"kw"},
}
OTHERS = sorted(READ.keys() - {"http", "urllib"})
PLACES = sorted({(module, name) for module in WAYS for name in WAYS[module] - ALL} | TRIES.keys())


def package(module: str) -> str:
    return module.partition(".")[0]


def functions(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from functions(each)


def code_of(place: Place) -> CodeType:
    module, name = place
    source = compile(inspect.getsource(import_module(module)), module, "exec")
    return next(code for code in functions(source) if code.co_qualname == name)


def sources(name: str) -> Iterator[str]:
    """Of all modules of a package on whose functions something is built."""
    if WAYS.get(name) is ALL:
        folder = Path(str(import_module(name).__file__)).parent
        yield from (path.read_text() for path in sorted(folder.rglob("*.py")))
    for module in sorted(each for each in WAYS if package(each) == name and each != name):
        yield inspect.getsource(import_module(module))


@pytest.mark.parametrize("name", READ)
def test_the_version_at_hand_was_read(name: str) -> None:
    import_module(name)
    oldest, first_unread = READ[name]
    found = version(name)
    assert found is not None
    assert oldest <= found < first_unread


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_read_is_unchanged(name: str) -> None:
    digest = hashlib.sha256("\0".join(sources(name)).encode()).hexdigest()[:16]
    assert (import_module(name).__version__, digest) == NOTED[name]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_every_function_named_is_there(place: Place) -> None:
    assert code_of(place).co_qualname == place[1]


@pytest.mark.parametrize("place", sorted(TRIES.keys() - CONNECTING - PREPARING), ids=".".join)
def test_every_variable_read_is_there(place: Place) -> None:
    code = code_of(place)
    read = TRIES[place]
    wanted = VARIABLES.get(read.__name__) or {
        str(cell.cell_contents) for cell in read.__closure__ or ()
    }
    assert wanted <= {*code.co_varnames, *code.co_cellvars}


def test_every_client_on_a_way_has_bounds_and_exceptions_that_are_known() -> None:
    assert {package(module) for module in WAYS} == READ.keys() <= KNOWN.keys()
