"""Imports point one way, the core does no I/O, and no module is a drawer for leftovers."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "semel"

# Room -> the other rooms it imports: exactly those. A room is a folder of src/semel or a module
# named here; any other module in src/semel itself, `__init__` included, belongs to `top`.
IMPORTS: dict[str, set[str]] = {
    "backoff": set(),
    "errors": set(),
    "log": set(),
    "core": {"errors"},
    "stores": {"backoff", "errors", "log", "core"},
    "runtime": {"backoff", "errors", "log", "core", "stores"},
    "telemetry": {"errors", "core", "runtime"},
    "client": {"backoff", "errors", "core"},
    "web": {"backoff", "errors", "log", "core", "stores", "runtime", "frameworks", "top"},
    "frameworks": {"errors", "log", "core", "stores", "runtime", "web", "console", "top"},
    "outbox": {"errors", "core", "stores", "runtime"},
    "worker": {"backoff", "errors", "log", "core", "stores", "runtime", "web", "outbox", "top"},
    "inbox": {"errors", "core", "runtime", "web", "outbox", "worker", "top"},
    "operators": {"errors", "core", "stores", "runtime", "web", "worker", "top"},
    "testing": {"errors", "core", "stores", "runtime", "worker", "operators", "top"},
    "console": {
        *("errors", "log", "core", "stores", "runtime", "web", "worker", "operators", "top"),
    },
    "check": {"errors", "core"},
    "cli": {
        *("errors", "core", "stores", "runtime", "web", "worker", "operators", "check", "console"),
        "top",
    },
    "top": {
        *("errors", "log", "core", "stores", "runtime", "web", "frameworks"),
        *("outbox", "inbox", "worker", "operators", "console", "cli"),
    },
}

# The core decides; it does not read clocks, throw dice, wait, or touch the outside.
CORE_LIBRARIES = {"http_sf"}
CORE_REFUSES_MODULES = set(
    """
    asyncio builtins concurrent ctypes fcntl fileinput ftplib getpass glob http imaplib importlib
    io locale logging mmap multiprocessing os pathlib platform queue random resource sched secrets
    select selectors shelve shutil signal smtplib socket socketserver sqlite3 ssl subprocess
    syslog tempfile threading time wsgiref xmlrpc
    """.split()  # noqa: SIM905 - seventy quoted words read worse
)
CORE_REFUSES_SUBMODULES = {"urllib.request", "urllib.robotparser"}
CORE_REFUSES_CALLS = {"open", "print", "input", "now", "utcnow", "today", "uuid1", "uuid4"}

# Folders of the source; the files beside them are in docs/contributing/layout.md.
ROOMS = sorted(f"src/semel/{each.parent.name}" for each in PACKAGE.glob("*/__init__.py"))

DRAWERS = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}


@dataclass(frozen=True)
class Module:
    """One source file, by its place in the package."""

    path: Path
    package: Path

    @property
    def dotted(self) -> list[str]:
        parts = ["semel", *self.path.relative_to(self.package).with_suffix("").parts]
        return parts[:-1] if parts[-1] == "__init__" else parts

    @property
    def room(self) -> str:
        return room_of(self.dotted, self.package)

    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))

    def at(self, node: ast.stmt | ast.expr) -> str:
        return f"{'/'.join(self.path.relative_to(self.package.parent).parts)}:{node.lineno}"


def room_of(dotted: list[str], package: Path) -> str:
    """The room a dotted name of this package lies in; an attribute of semel itself is `top`."""
    if len(dotted) < 2:
        return "top"
    name = dotted[1]
    return name if name in IMPORTS or (package / name).is_dir() else "top"


def modules(package: Path) -> list[Module]:
    return [Module(path, package) for path in sorted(package.rglob("*.py"))]


def imported(module: Module) -> Iterator[tuple[ast.stmt, list[str]]]:
    """Every import of a module as absolute dotted names, those in functions included."""
    for node in ast.walk(module.tree()):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(module, node)
            yield from ((node, [*origin, alias.name]) for alias in node.names)


def absolute(module: Module, node: ast.ImportFrom) -> list[str]:
    named = node.module.split(".") if node.module else []
    if not node.level:
        return named
    is_package = module.path.name == "__init__.py"
    base = module.dotted if is_package else module.dotted[:-1]
    return base[: len(base) - node.level + 1] + named


def wrong_directions(package: Path) -> Iterator[str]:
    for module in modules(package):
        if module.room not in IMPORTS:
            yield f"{module.path.name}: semel.{module.room} has no line in IMPORTS"
            continue
        for node, name in imported(module):
            if name[0] != "semel":
                continue
            room = room_of(name, package)
            if room != module.room and room not in IMPORTS[module.room]:
                yield f"{module.at(node)}: {module.room} may not import {room} ({'.'.join(name)})"


def unused_directions(package: Path) -> Iterator[str]:
    used: dict[str, set[str]] = {room: set() for room in IMPORTS}
    for module in modules(package):
        used[module.room] |= {room_of(name, package) for _, name in imported(module)}
    for room, others in IMPORTS.items():
        yield from (f"{room} imports nothing of {other}" for other in sorted(others - used[room]))


def core_outside(package: Path) -> Iterator[str]:
    """What the core imports or calls that a pure core may not."""
    for module in modules(package):
        if module.room != "core":
            continue
        for node, name in imported(module):
            if not pure(name):
                yield f"{module.at(node)}: core may not import {'.'.join(name)}"
        for call in calls(module.tree()):
            yield f"{module.at(call)}: core may not call {ast.unparse(call.func)}"


def pure(name: list[str]) -> bool:
    if ".".join(name[:2]) in CORE_REFUSES_SUBMODULES or name[0] in CORE_REFUSES_MODULES:
        return False
    return name[0] in {"semel", *CORE_LIBRARIES} or name[0] in sys.stdlib_module_names


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if name in CORE_REFUSES_CALLS:
                    yield node
            case _:
                pass


def drawers(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if path.stem in DRAWERS and (path.is_dir() or path.suffix == ".py"):
            yield f"{path.relative_to(root)}: name the module after what it holds"


def test_imports_point_one_way() -> None:
    assert list(wrong_directions(PACKAGE)) == []


def test_every_direction_is_used() -> None:
    assert list(unused_directions(PACKAGE)) == []


def test_the_core_does_no_io_and_reads_no_clock() -> None:
    assert list(core_outside(PACKAGE)) == []


@pytest.mark.parametrize("folder", ["src", "tests", "bench"])
def test_no_module_is_a_drawer(folder: str) -> None:
    assert list(drawers(ROOT / folder)) == []


def homonyms(package: Path) -> dict[str, list[str]]:
    """Public classes whose name is defined in more than one module."""
    places: dict[str, list[str]] = {}
    for module in modules(package):
        for node in module.tree().body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(".".join(module.dotted))
    return {name: there for name, there in places.items() if len(there) > 1}


def test_one_class_name_has_one_meaning() -> None:
    found = homonyms(PACKAGE)
    found.pop("Migration", None)  # the name that Django demands of each of its migrations
    assert found == {}


def test_a_second_meaning_is_found(tmp_path: Path) -> None:
    files = {"core/a.py": "class Entry: ...", "web/b.py": "class Entry: ...\nclass _Own: ..."}
    assert list(homonyms(write(tmp_path / "semel", files))) == ["Entry"]


def unnamed(folder: Path) -> Iterator[str]:
    """Modules that the map in the docstring of their folder does not name."""
    for package in folder.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        words = set(re.findall(r"\w+", text))
        for module in sorted(package.parent.glob("[!_0-9]*.py")):
            if module.stem not in words and not module.stem.startswith(("test_", "probes_")):
                yield f"{package.parent.name}/{module.name}"


@pytest.mark.parametrize("folder", ["bench", "tests", *ROOMS])
def test_every_folder_has_a_map_of_its_modules(folder: str) -> None:
    assert list(unnamed(ROOT / folder)) == []


def test_a_module_that_is_not_on_the_map_is_found(tmp_path: Path) -> None:
    files = {"core/__init__.py": '"""a  the first"""', "core/a.py": "", "core/b.py": ""}
    assert list(unnamed(write(tmp_path / "semel", files))) == ["core/b.py"]


def write(package: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("core/request/keys.py", "import semel.stores.memory", "core may not import stores"),
        ("core/request/keys.py", "from semel import stores", "core may not import stores"),
        ("core/keys.py", "from ..stores import memory", "core may not import stores"),
        ("core/keys.py", "from .. import stores", "core may not import stores"),
        ("core/__init__.py", "from ..stores import memory", "core may not import stores"),
        ("core/request/keys.py", "def f():\n    import semel", "core may not import top"),
        ("errors.py", "from semel.core import keys", "errors may not import core"),
        ("stores/sql/plans.py", "from semel.web import asgi", "stores may not import web"),
        ("runtime/renewal.py", "import semel.web.asgi", "runtime may not import web"),
        ("client/retry.py", "from semel.stores import base", "client may not import stores"),
        ("web/asgi.py", "from semel.cli import main", "web may not import cli"),
        ("attic/box.py", "", "semel.attic has no line in IMPORTS"),
    ],
)
def test_a_wrong_direction_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    found = list(wrong_directions(write(tmp_path / "semel", {file: source})))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os.path",
        "from time import monotonic",
        "from urllib.request import urlopen",
        "import psycopg",
        "from datetime import datetime\nx = datetime.now()",
        "open('x')",
    ],
)
def test_an_impure_core_is_found(tmp_path: Path, source: str) -> None:
    assert len(list(core_outside(write(tmp_path / "semel", {"core/request/keys.py": source})))) == 1


def test_a_drawer_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"core/utils.py": "", "helpers/x.py": "", "core/request/keys.py": ""})
    assert len(list(drawers(tmp_path))) == 2


def test_right_directions_pass(tmp_path: Path) -> None:
    package = write(
        tmp_path / "semel",
        {
            "__init__.py": "from semel.guard import Guard\nfrom semel.core.request.keys import Key",
            "guard.py": "from semel import config\nfrom semel.web import asgi",
            "core/keys.py": "import http_sf\nfrom urllib.parse import quote\nfrom . import model",
            "stores/memory.py": "import threading\nfrom semel.core.request.keys import Key",
            "web/asgi.py": "from semel.stores import memory\nfrom semel.errors import SemelError",
        },
    )
    assert list(wrong_directions(package)) == []
    assert list(core_outside(package)) == []
