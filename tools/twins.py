"""Writes blocking code from its twin for event loops.

Where two colours differ in words only, one text is kept by hand, the async one; the other is
written from it::

    python -m tools.twins            writes them
    python -m tools.twins --check    fails when one is not what would be written

``async`` and ``await`` go, a name that begins with `Async` loses it, and words are replaced by
`WORDS` and by the words of the twin. A twin is a whole file, named in `TWINS`; what it would import
in vain goes too. Or it is one function: the line ``# Twin of NAME, by tools.twins`` stands above
it, NAME is a function of the same file. It keeps its own name and docstring.

Twins that are no text twins stay as two. Batchers and pools: callbacks of one loop need no lock,
threads need one; and in a loop a statement, or a commit, outlives its caller.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path
from textwrap import dedent, indent
from tokenize import NAME, generate_tokens
from typing import TypeAlias

ROOT = Path(__file__).parents[1]
PACKAGE = "src/semel"

WORDS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "_adid": "_did",
    "_aconnect": "_connect",
    "aacquire": "acquire",
    "aascertain": "ascertain",
    "abegin": "begin",
    "acall": "call",
    "aclose": "close",
    "adrive": "drive",
    "anext": "next",
    "arun": "run",
    "asyncio.sleep": "time.sleep",
    "async with": "with",
    "Awaitable[A]": "A",
    "awaited()": "blocking()",
    "StopAsyncIteration": "StopIteration",
}

_MARK = re.compile(r"^(?P<indent> *)# Twin of (?P<name>[\w.]+), by tools\.twins$", re.MULTILINE)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Twin:
    """Two files below the package. ``words``: those of this twin, which win over `WORDS`."""

    awaited: str
    blocking: str
    words: Mapping[str, str] = field(default_factory=dict[str, str])


TWINS = (
    Twin(
        "stores/postgres/psycopg_async.py",
        "stores/postgres/psycopg_sync.py",
        {"event loops": "threads"},
    ),
)


class NoTwin(Exception):
    """A mark that names no function, or stands above none."""


def blocking_text(twin: Twin, source: str) -> str:
    """The text of the blocking file, formatted as ruff does it."""
    origin = Path(twin.awaited).name
    head = f"# Written by `python -m tools.twins` from {origin}: change that file.\n"
    text = head + _blocking({**WORDS, **twin.words}, source)
    return _formatted(text, Path(PACKAGE, twin.blocking), "--select=I,F401")


def with_function_twins(path: Path, source: str) -> str:
    """``source`` with every marked function written anew from the one that its mark names."""
    functions = dict(_functions(ast.parse(source)))
    lines = source.splitlines(keepends=True)
    for mark in reversed(
        [*_MARK.finditer(source)]
    ):  # from below: the lines above stay where they are
        row = source.count("\n", 0, mark.start()) + 2
        marked = next((each for each in functions.values() if each.lineno == row), None)
        origin = functions.get(mark["name"])
        if marked is None or origin is None:
            raise NoTwin(f"{path}:{row - 1}: {mark['name']} is not a function, or none is below")
        twin = _function_twin(source, origin, marked)
        lines[row - 1 : marked.end_lineno] = [indent(twin, mark["indent"])]
    text = "".join(lines)
    return text if text == source else _formatted(text, path)


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """The functions of a module and of its classes, by their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")


def _function_twin(source: str, origin: Function, marked: Function) -> str:
    """``origin``, blocking, with the name and the docstring of ``marked``."""
    lines = source.splitlines(keepends=True)
    head, rest = origin.lineno - 1, _after_docstring(origin) - 1
    said = lines[marked.body[0].lineno - 1 : _after_docstring(marked) - 1]
    text = "".join(
        [*lines[head : origin.body[0].lineno - 1], *said, *lines[rest : origin.end_lineno]]
    )
    text = dedent(text).replace(f"def {origin.name}(", f"def {marked.name}(", 1)
    return _blocking(WORDS, text)


def _after_docstring(function: Function) -> int:
    """The line behind the docstring; that of the first statement when there is none."""
    first = function.body[0]
    has_one = ast.get_docstring(function, clean=False) is not None
    return (first.end_lineno or 0) + 1 if has_one else first.lineno


def _blocking(words: Mapping[str, str], source: str) -> str:
    known = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)({known})(?!\w)|\bAsync(?=[A-Z])")
    return pattern.sub(lambda match: words.get(match[0], ""), _without_keywords(source))


def _without_keywords(source: str) -> str:
    """``source`` without the keywords; words in texts and comments stay."""
    lines = source.splitlines(keepends=True)
    for here, after in reversed([*pairwise(generate_tokens(StringIO(source).readline))]):
        if here.type == NAME and here.string in ("async", "await"):
            row, start = here.start
            end = after.start[1] if after.start[0] == row else here.end[1]
            line = lines[row - 1]
            lines[row - 1] = line[:start] + line[end:]
    return "".join(lines)


def _formatted(text: str, path: Path, *fixes: str) -> str:
    commands = [["check", "--quiet", "--fix", *fixes]] if fixes else []
    for command in [*commands, ["format"]]:
        ruff = [sys.executable, "-m", "ruff", *command, f"--stdin-filename={path}", "-"]
        done = subprocess.run(
            ruff, input=text, cwd=ROOT, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.twins", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check: bool = parser.parse_args(arguments).check
    stale = 0
    for path, text in _twins(root / PACKAGE):
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{path} is not what its async twin says: run `python -m tools.twins`")
        else:
            path.write_text(text, "utf-8")
            print(f"{path}: written")
    return 1 if check and stale else 0


def _twins(package: Path) -> Iterator[tuple[Path, str]]:
    for twin in TWINS:
        source = (package / twin.awaited).read_text("utf-8")
        yield package / twin.blocking, blocking_text(twin, source)
    for path in sorted(package.rglob("*.py")):
        source = path.read_text("utf-8")
        if _MARK.search(source):
            yield path, with_function_twins(path, source)


if __name__ == "__main__":
    sys.exit(main())
