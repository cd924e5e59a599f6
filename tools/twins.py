"""Writes the blocking twin of a file for event loops.

Where two colours differ in words only, one text is kept by hand, the async one; the other is
written from it::

    python -m tools.twins            writes the files
    python -m tools.twins --check    fails when a file is not what would be written

``async`` and ``await`` go, a name that begins with `Async` loses it, and words are replaced by
`WORDS` and by the words of the twin. What is then imported in vain goes too.

Twins that are no text twins stay as two files. Batchers, pools and transactions: callbacks of one
loop need no lock, threads need one; and in a loop a statement, or a commit, outlives its caller.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tokenize import NAME, generate_tokens

ROOT = Path(__file__).parents[1]
PACKAGE = "src/semel"

WORDS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "arun": "run",
    "adrive": "drive",
    "asyncio.sleep": "time.sleep",
    "async with": "with",
}


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


def blocking_text(twin: Twin, source: str) -> str:
    """The text of the blocking file, formatted as ruff does it."""
    words = {**WORDS, **twin.words}
    known = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)({known})(?!\w)|\bAsync(?=[A-Z])")
    text = pattern.sub(lambda match: words.get(match[0], ""), _without_keywords(source))
    origin = Path(twin.awaited).name
    text = f"# Written by `python -m tools.twins` from {origin}: change that file.\n{text}"
    name = f"--stdin-filename={PACKAGE}/{twin.blocking}"
    for command in (["check", "--quiet", "--fix", "--select=I,F401"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, name, "-"]
        done = subprocess.run(
            ruff, input=text, cwd=ROOT, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


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


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.twins", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check: bool = parser.parse_args(arguments).check
    stale = 0
    for twin in TWINS:
        path = root / PACKAGE / twin.blocking
        text = blocking_text(twin, (root / PACKAGE / twin.awaited).read_text("utf-8"))
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{path} is not the twin of {twin.awaited}: run `python -m tools.twins`")
        else:
            path.write_text(text, "utf-8")
            print(f"{path}: written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
