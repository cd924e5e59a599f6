"""No page leads nowhere, names what is not there, or shows code that does not work."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import semel
from semel.check.profiles import profile_names
from semel.client.clients import BaseClient
from semel.config import _SCALARS
from semel.core.exchange.problems import CATALOGUE
from semel.core.policy import OPTION_NAMES
from semel.stores.mysql import settings as mysql
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.settings import OWN
from semel.stores.redis import RedisBackend
from semel.stores.redis.settings import OPTIONS
from tests.docs.generate import PIECES, generated, rewritten
from tests.docs.pages import DOCS, ROOT, Block, Page, blocks, links, page, pages, plain

PAGES = pytest.mark.parametrize("page", pages(), ids=str)
PYTHON = blocks("python")

# ── links ─────────────────────────────────────────────────────────────────────────────────────────


@PAGES
def test_links_lead_somewhere(page: Page) -> None:
    assert list(broken_links(page)) == []


def broken_links(page: Page) -> Iterator[str]:
    for link in page.links:
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = Page((page.path.parent / path).resolve() if path else page.path)
        if not target.path.exists() or (anchor and anchor not in target.anchors):
            yield link


def test_every_page_is_reached_from_the_index() -> None:
    reached, ahead = set[Path](), [DOCS / "index.md"]
    while ahead:
        path = ahead.pop()
        if path not in reached and path.suffix == ".md":
            reached.add(path)
            links = [link.partition("#")[0] for link in Page(path).links if "://" not in link]
            ahead += [(path.parent / link).resolve() for link in links if link]
    assert {each.path for each in pages() if each.path.is_relative_to(DOCS)} <= reached


# ── groups ────────────────────────────────────────────────────────────────────────────────────────

GROUPS = {
    "frameworks": "Frameworks",
    "policies": "Policies and modes",
    "stores": "Stores",
    "effects": "Effects and unknown outcomes",
    "security": "Security",
    "testing": "Testing",
    "operations": "Operations",
    "clients": "Clients",
}
"""The folders of the how-to guides, and their headings in the index."""


def test_every_guide_is_listed_once_in_its_group() -> None:
    index = page("docs/howto/index.md")
    assert index.headings == ["How-to guides", "Start", *GROUPS.values()]
    for folder, heading in GROUPS.items():
        listed = [link for link in links(index.section(heading)) if link.startswith(f"{folder}/")]
        assert sorted(listed) == sorted(
            f"{folder}/{path.name}" for path in (DOCS / "howto" / folder).glob("*.md")
        )


def test_no_guide_stands_outside_the_groups() -> None:
    assert {path.name for path in (DOCS / "howto").iterdir()} == {"index.md", *GROUPS}


def test_the_map_of_the_source_has_every_folder_and_names_no_other() -> None:
    layout, package = page("docs/contributing/layout.md"), ROOT / "src" / "semel"
    listed = {plain(row[0]) for row in layout.table("Folders")}
    folders = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert folders <= listed
    named = [
        word for row in layout.table("Where to look") for word in re.findall("`(.+?)`", row[1])
    ]
    assert [name for name in [*listed, *named] if not (package / name).exists()] == []


# ── generated pieces ──────────────────────────────────────────────────────────────────────────────


def test_generated_pieces_are_what_the_code_says() -> None:
    stale = [each.name for each in pages() if rewritten(each) != each.text]
    assert stale == [], "run: python -m tests.docs.generate"


def test_every_generated_piece_is_shown() -> None:
    assert {name for each in pages() for name in generated(each)} == set(PIECES)


# ── code blocks ───────────────────────────────────────────────────────────────────────────────────
# ``python`` is compiled and its imports and options are checked; ``python run`` is run as well, all
# such blocks of a page one after the other; ``python title=file.py`` belongs to a page that is
# played (test_readme.py).


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_in_the_pages_compiles_and_names_what_is_there(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    assert set(block.marks) - {"run", f"title={block.title}"} == set()
    assert [*missing_imports(tree), *missing_names(tree), *unknown_keywords(tree)] == []


READERS_OWN = {"shop", "hotel", "counting"}
"""The modules that a reader is supposed to have written."""
OF_A_PROJECT = {"rest_framework", "ninja", "alembic"}
"""Packages that work in a project of their own only; `make check` knows their names."""


def missing_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            if str(node.module).partition(".")[0] in READERS_OWN | OF_A_PROJECT:
                continue
            module = import_module(node.module or "")
            yield from (
                f"{node.module}.{alias.name}"
                for alias in node.names
                if not hasattr(module, alias.name)
            )


def missing_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="semel"), attr=name) if not hasattr(semel, name):
                yield f"semel.{name}"
            case _:
                pass


FACTORIES = {"ietf", "stripe", "accepted", "payments"}
GUARD = set(inspect.signature(semel.Guard).parameters)
FINGERPRINT = set(inspect.signature(semel.FingerprintRule).parameters)
ROUTE = set(inspect.signature(semel.Route).parameters)


def unknown_keywords(tree: ast.AST) -> Iterator[str]:
    takes = {"Guard": GUARD, "FingerprintRule": FINGERPRINT, "Route": ROUTE}
    takes |= {factory: set(OPTION_NAMES) for factory in FACTORIES}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="semel"), attr=name), keywords=given
            ):
                known = takes.get(name, {each.arg for each in given})
                yield from (f"{name}({each.arg}=)" for each in given if each.arg not in known)
            case _:
                pass


RUN = sorted({block.page for block in PYTHON if "run" in block.marks})


@pytest.mark.parametrize("name", RUN)
def test_python_in_the_pages_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where Litestar looks names up
    with every_guard_closed(monkeypatch):
        for block in page(name).blocks:
            if block.language == "python" and "run" in block.marks:
                # Padded, so that a traceback shows the line of the page.
                exec(compile("\n" * block.line + block.text, block.page, "exec"), vars(example))


@contextmanager
def every_guard_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages show how a guard is made; the application's end, which closes it, is not shown."""
    made: list[semel.Guard] = []
    begin = semel.Guard.__init__

    def noted(guard: semel.Guard, *arguments: Any, **options: Any) -> None:
        begin(guard, *arguments, **options)
        made.append(guard)

    with monkeypatch.context() as patched:
        patched.setattr(semel.Guard, "__init__", noted)
        yield
    for guard in made:
        guard.close()


# ── words ─────────────────────────────────────────────────────────────────────────────────────────

WORDS = {
    *("content-length", "no-store", "semel-worker"),
    *("best-effort", "allkeys-lru", "min-replicas-to-write"),  # Redis
}
WORDS |= {name for name in profile_names() if name.startswith("semel-")} | {"x-idempotency"}
"""What stands in backticks and looks like a problem's code, but is none."""
OTHERS_OPTIONS = {
    *("repeatable", "final", "order", "which"),  # Operation.call, Absent, Operation.enqueue
    *("target_session_attrs", "sslmode"),  # libpq
    "synchronous",  # SQLite
    *("opt", "cache"),  # Litestar
    "free",  # EvictUnknown
    "wait",  # Operator.evict
}
_KEBAB = re.compile(r"[a-z]+(?:-[a-z]+)+")
_OPTION = re.compile(r"([a-z_]+)=(?:[^=\s].*)?")
_VARIABLE = re.compile(r"\bSEMEL_[A-Z_]+\b")


@PAGES
def test_no_page_names_an_unknown_problem(page: Page) -> None:
    named = {word for word in page.code if _KEBAB.fullmatch(word)}
    assert named - set(CATALOGUE) - WORDS == set()


@PAGES
def test_no_page_names_an_unknown_option(page: Page) -> None:
    named = {found[1] for word in page.code if (found := _OPTION.fullmatch(word))}
    ours = {*OPTION_NAMES, *GUARD, *FINGERPRINT, *OWN, *mysql.OWN, *mysql.SERVER, *OPTIONS, "clock"}
    for kind in (BaseClient, PostgresBackend, RedisBackend):
        ours |= set(inspect.signature(kind).parameters)
    assert named - ours - OTHERS_OPTIONS == set()


@pytest.fixture(scope="module")
def variables() -> set[str]:
    """Every environment variable that the code or a test names, and the settings."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    known = {name for path in sources for name in _VARIABLE.findall(path.read_text())}
    return known | {f"SEMEL_{setting.upper()}" for setting in _SCALARS}


@PAGES
def test_no_page_names_an_unknown_environment_variable(page: Page, variables: set[str]) -> None:
    assert set(_VARIABLE.findall(page.text)) - variables == set()


@PAGES
def test_no_page_names_a_test_that_is_not_there(page: Page) -> None:
    assert list(missing_tests(page)) == []


TESTS = ("tests/", "src/semel/testing/contract/")


def missing_tests(page: Page) -> Iterator[str]:
    for name in page.code:
        if name.startswith(TESTS) and "::" in name:
            path, _, test = name.partition("::")
            source = ROOT / path
            if not source.exists() or f"def {test}(" not in source.read_text():
                yield name


def test_every_guarantee_names_a_test() -> None:
    guarantees = page("docs/reference/guarantees.md")
    promises = [row for heading in guarantees.headings[3:] for row in guarantees.table(heading)]
    assert len(promises) > 40
    assert [
        promise for promise, proof in promises if not any(f"`{folder}" in proof for folder in TESTS)
    ] == []


# ── the checks notice ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "source",
    [
        "import semel\nsemel.Gard()",
        "import semel\nsemel.ietf(retenton=1)",
        "from semel import Gard",
    ],
)
def test_a_wrong_name_in_code_is_noticed(source: str) -> None:
    tree = ast.parse(source)
    assert [*missing_imports(tree), *missing_names(tree), *unknown_keywords(tree)]


def test_a_broken_link_and_a_missing_test_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Here\n\n[a](gone.md) [b](#here) [c](#gone) `tests/unit/x.py::test_gone`\n")
    assert list(broken_links(Page(path))) == ["gone.md", "#gone"]
    assert list(missing_tests(Page(path))) == ["tests/unit/x.py::test_gone"]
