"""Programs that no wheel brings: Debian's packages, fetched and unpacked into a cache folder.

That takes no root and touches nothing of the system. Where the machine has no package lists, or
old ones, lists are fetched into the cache folder too.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FETCH_SECONDS = 300.0


@dataclass(frozen=True)
class Unpacked:
    """The root of a tree of packages, and the environment that its programs need."""

    root: Path

    @property
    def env(self) -> dict[str, str]:
        folders = [*self.root.glob("usr/lib/*-linux-*"), *self.root.glob("lib/*-linux-*")]
        # What only other libraries of its package use, as libpulse's does, has a folder of its own.
        private = {each.parent for folder in folders for each in folder.glob("*/*.so*")}
        return {"LD_LIBRARY_PATH": ":".join(map(str, [*folders, *sorted(private)]))}


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "semel-tests")


def unpacked(name: str, packages: Sequence[str], *, recurse: bool = False) -> Unpacked | None:
    """The packages, with the libraries that the first of them needs; None where there are none.

    ``recurse``: with all that apt would install for it, libraries of libraries too.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / name
    with locked(cache / f"{name}.lock"):
        if not root.exists():
            try:
                fetch(packages, root, Lists(), recurse)
            except subprocess.SubprocessError:
                fetch_with_own_lists(packages, root, recurse)
    return Unpacked(root) if root.exists() else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Several test processes may want it at once: one fetches, the others wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch_with_own_lists(packages: Sequence[str], root: Path, recurse: bool) -> None:
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        lists = Lists(Path(folder))
        try:
            run("apt-get", *lists.options, "update")
            fetch(packages, root, lists, recurse)
        except subprocess.SubprocessError as error:
            print(f"semel: Debian's {packages[0]} could not be fetched: {error}")


@dataclass(frozen=True)
class Lists:
    """Which package lists apt reads: the system's, or those in a folder of ours."""

    folder: Path | None = None

    @property
    def options(self) -> list[str]:
        if self.folder is None:
            return []
        own = {"Dir::State::lists": "lists", "Dir::Cache": "cache"}
        for name in own.values():
            (self.folder / name / "partial").mkdir(parents=True, exist_ok=True)
        chosen = [f"-o{option}={self.folder / name}" for option, name in own.items()]
        return [*chosen, "-oAPT::Sandbox::User=root"]  # no other user may write there


def fetch(packages: Sequence[str], root: Path, lists: Lists, recurse: bool) -> None:
    """Into a folder beside, renamed when it is complete: half of it is never found."""
    wanted = dict.fromkeys([*packages, *missing_libraries(packages[0], lists, recurse)])
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        folder = Path(name)
        run("apt-get", *lists.options, "download", *wanted, cwd=folder)
        for package in sorted(folder.glob("*.deb")):
            run("dpkg", "-x", package.name, "root", cwd=folder)
        (folder / "root").rename(root)


def missing_libraries(package: str, lists: Lists, recurse: bool) -> list[str]:
    """What it depends on and the machine does not have."""
    if recurse:  # apt's own choice among alternatives; nothing is installed
        command = ["apt-get", *lists.options, "--simulate", "-oDebug::NoLocking=true", "install"]
        chosen = run(*command, "--yes", "--no-install-recommends", package)
        return re.findall(r"^Inst (\S+)", chosen, re.MULTILINE)
    command = ["apt-cache", *lists.options, "depends", "--no-recommends", "--no-suggests", package]
    wanted = re.findall(r"^\s*Depends: (lib[\w.+-]+)$", run(*command), re.MULTILINE)
    return [name for name in wanted if not installed(name)]


def installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(command, capture_output=True, text=True).stdout == "installed"


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=FETCH_SECONDS,
    )
    return done.stdout
