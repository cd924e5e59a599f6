"""Writes the Python blocks of the pages into files, for the type checkers.

::

    python -m tools.snippets    writes build/snippets

The block at line 20 of docs/howto/frameworks/asgi.md becomes
build/snippets/docs/howto/frameworks/asgi/line_20.py, and its lines have the numbers that they have
on the page: what a type checker reports names the page and the line.

A page builds up a program. Names that a block does not bind itself are those of the nearest block
above that does. A block with a title is a file of the reader's own: others import it by that name;
on pages without one, ``shop`` is that of the README. What is shown of an example is checked there.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT, Block, Page, page, pages

SNIPPETS = ROOT / "build" / "snippets"
IGNORED = frozenset({*dir(builtins), "__file__", "__name__"})


def written(of: Page) -> Iterator[tuple[Path, str]]:
    """The files of a page: where each stands below `SNIPPETS`, and its text."""
    above: list[Block] = []
    for block in of.blocks:
        if block.language == "python" and not any(block.text in source for source in examples()):
            yield place(block), text_of(block, above)
            above.append(block)


@cache
def examples() -> list[str]:
    return [path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")]


def place(block: Block) -> Path:
    folder = block.page.removesuffix(".md").replace("-", "_")
    return Path(folder, f"line_{block.line}.py")


def text_of(block: Block, above: Sequence[Block]) -> str:
    """The block with its own line numbers; the first line, never its own, imports the names."""
    wanted = [] if block.title is not None else sorted(free_names(block.text))
    imports = filter(None, (import_of(name, above) for name in wanted))
    text = "; ".join(imports) + "\n" * block.line + block.text
    for other in (*above[::-1], *page("README.md").blocks):
        if other.title is not None:
            named = re.escape(other.title.removesuffix(".py").replace("/", "."))
            own = re.compile(rf"\bfrom (shop\.)?{named}(?= import )")
            text = own.sub(f"from {module_of(other)}", text)
    return text


def module_of(block: Block) -> str:
    return ".".join(["build", "snippets", *place(block).with_suffix("").parts])


def free_names(text: str) -> set[str]:
    """The names that a block uses and does not bind."""
    module = symtable.symtable(text, "block", "exec")
    bound = {each.get_name() for each in module.get_symbols() if _binds(each)}
    return (
        {
            each.get_name()
            for scope in _scopes(module)
            for each in scope.get_symbols()
            if each.is_referenced() and (scope is module or each.is_global())
        }
        - bound
        - IGNORED
    )


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def import_of(name: str, above: Sequence[Block]) -> str | None:
    """The import of ``name`` from the nearest block that binds it; None: it is bound nowhere."""
    for block in reversed(above):
        module = symtable.symtable(block.text, str(block), "exec")
        symbol = module.lookup(name) if name in module.get_identifiers() else None
        if symbol is not None and _binds(symbol):
            again = _imported(name, block) if symbol.is_imported() else None
            return again or f"from {module_of(block)} import {name}"
    return None


def _imported(name: str, block: Block) -> str | None:
    """The statement by which a block imports ``name``, for that name alone."""
    for node in ast.parse(block.text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    node.names = [alias]
                    return ast.unparse(node)
    return None


def write(folder: Path, read: Sequence[Page]) -> int:
    """Write what has changed, and remove what no page has any more; returns how many there are."""
    files = {folder / path: text for each in read for path, text in written(each)}
    for path in folder.rglob("*.py"):
        if path not in files:
            path.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return len(files)


if __name__ == "__main__":
    print(f"build/snippets: {write(SNIPPETS, pages())} blocks")
