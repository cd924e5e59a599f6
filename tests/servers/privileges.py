"""Database servers refuse to run as root: the ways around it, best first."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.child import ServerError

NOBODY = 65_534


@dataclass(frozen=True)
class Way:
    """How to start a command as somebody other than root."""

    name: str
    prefix: tuple[str, ...] = ()
    owner: int | None = None

    def command(self, *arguments: str | Path) -> list[str]:
        return [*self.prefix, *map(str, arguments)]

    def give(self, folder: Path) -> None:
        """Hand a folder to the user that the command will run as."""
        if self.owner is not None:
            os.chown(folder, self.owner, self.owner)


# Inside the namespace the process is nobody, outside it is still root: it reads binaries and
# data below folders that only root may enter, and needs no chown.
NAMESPACE = Way(
    "as nobody in a user namespace",
    ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--"),
)
DROPPED = Way(
    "as nobody",
    ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"),
    owner=NOBODY,
)


def ways() -> Iterator[Way]:
    if os.geteuid() != 0:
        yield Way("as the current user")
        return
    yield from (way for way in (NAMESPACE, DROPPED) if shutil.which(way.prefix[0]))


def way_to_run(binary: Path, env: Mapping[str, str] | None = None) -> Way:
    """The first way in which `binary --version` works, with the environment that it needs."""
    refusals = []
    for way in ways():
        command = way.command(binary, "--version")
        whole = {**os.environ, **(env or {})}
        tried = subprocess.run(command, capture_output=True, text=True, env=whole)
        if tried.returncode == 0:
            return way
        refusals.append(f"{way.name}: {tried.stderr.strip()}")
    raise ServerError(f"no way to run {binary} without being root: {'; '.join(refusals)}")
