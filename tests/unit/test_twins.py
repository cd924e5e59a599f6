"""A blocking file that is written from its async twin is what would be written today."""

from pathlib import Path
from shutil import copy

import pytest

from tools.twins import (
    PACKAGE,
    ROOT,
    TWINS,
    NoTwin,
    Twin,
    blocking_text,
    main,
    with_function_twins,
)

EXAMPLE = '''"""A client for event loops."""

import asyncio
import time


class AsyncClient(AsyncBase):
    """Await what it says; `async with client` closes it."""

    async def __aenter__(self) -> "AsyncClient":
        async with self.lock:
            await asyncio.sleep(self.pause)  # awaited, not in vain
        return self

    async def all(self) -> list[int]:
        return [int(await each) async for each in self.found(time.time())]
'''

BLOCKING = '''# Written by `python -m tools.twins` from client_async.py: change that file.
"""A client for threads."""

import time


class SyncClient(Base):
    """Await what it says; `with client` closes it."""

    def __enter__(self) -> "SyncClient":
        with self.lock:
            time.sleep(self.pause)  # awaited, not in vain
        return self

    def all(self) -> list[int]:
        return [int(each) for each in self.found(time.time())]
'''


def test_the_files_are_those_that_the_tool_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert not capsys.readouterr().out


def test_keywords_go_and_names_change() -> None:
    words = {"AsyncClient": "SyncClient", "event loops": "threads"}
    twin = Twin("client/client_async.py", "client/client_sync.py", words)
    assert blocking_text(twin, EXAMPLE) == BLOCKING


FUNCTIONS = """class Store:
    # Twin of AsyncStore.awrite, by tools.twins
    def write(self, row: int) -> int:
        '''Written when it returns.'''
        OLD

    def other(self) -> None: ...


class AsyncStore:
    async def awrite(self, row: int) -> int:
        '''The same, awaited.'''
        await self.turn.aacquire()
        return await self.file.awaited().put(row)
"""


def test_a_marked_function_keeps_its_name_and_docstring_and_takes_the_rest() -> None:
    text = with_function_twins(Path("store.py"), FUNCTIONS.replace("OLD", "pass"))
    body = "self.turn.acquire()\n        return self.file.blocking().put(row)"
    assert text == FUNCTIONS.replace("OLD", body).replace("'''", '"""')
    assert with_function_twins(Path("store.py"), text) == text


@pytest.mark.parametrize("change", [("awrite,", "gone,"), ("def write", "x = 1\n\n    def write")])
def test_a_mark_without_its_function_is_an_error(change: tuple[str, str]) -> None:
    with pytest.raises(NoTwin, match=r"store\.py:2"):
        with_function_twins(Path("store.py"), FUNCTIONS.replace("OLD", "pass").replace(*change))


def test_a_changed_twin_is_noticed_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (name for twin in TWINS for name in (twin.awaited, twin.blocking)):
        (tmp_path / PACKAGE / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / PACKAGE / name, tmp_path / PACKAGE / name)
    changed = tmp_path / PACKAGE / TWINS[0].blocking
    good = changed.read_text("utf-8")
    changed.write_text(f"{good}\n", "utf-8")

    assert main(["--check"], tmp_path) == 1
    assert TWINS[0].blocking in capsys.readouterr().out
    assert changed.read_text("utf-8") == f"{good}\n"

    assert main([], tmp_path) == 0
    assert changed.read_text("utf-8") == good
    assert main(["--check"], tmp_path) == 0


def test_a_twin_that_is_missing_is_noticed(tmp_path: Path) -> None:
    for twin in TWINS:
        (tmp_path / PACKAGE / twin.awaited).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / PACKAGE / twin.awaited, tmp_path / PACKAGE / twin.awaited)
    assert main(["--check"], tmp_path) == 1
