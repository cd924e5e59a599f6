"""Chromium, for the tests of the console.

Where there is none, Debian's package is fetched, with the libraries and fonts that it needs
(`tests.servers.debian`).
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.servers import debian
from tests.servers.child import ServerError
from tests.waiting import PATIENCE

HOW_TO_GET_IT = (
    "Chromium not found, nor could Debian's package be fetched (Debian: apt-get install chromium; "
    "else set SEMEL_TEST_CHROMIUM to its binary)"
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "chromium-common", "fonts-dejavu-core")
ARGUMENTS = ("--no-sandbox", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage")
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{root}/fontconfig</cachedir></fontconfig>
"""


@dataclass(frozen=True)
class Chromium:
    path: Path
    version: str
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.version} from {self.path}"


def find() -> Chromium | None:
    """The first one that runs: named, on the PATH, or unpacked for us."""
    if chosen := os.environ.get("SEMEL_TEST_CHROMIUM"):
        return inspect(Path(chosen).absolute())
    for path in filter(None, map(shutil.which, NAMES)):
        if found := inspect(Path(path)):
            return found
    fetched = debian.unpacked("chromium", PACKAGES, recurse=True)
    if fetched is None:
        return None
    # Not the script in usr/bin, which looks for the rest where it would be installed.
    return inspect(fetched.root / "usr/lib/chromium/chromium", {**fetched.env, **fonts(fetched)})


def fonts(fetched: debian.Unpacked) -> dict[str, str]:
    """The fonts of the unpacked tree, and no others: a machine may have none."""
    path = fetched.root / "fonts.conf"
    path.write_text(FONTS.format(root=fetched.root))
    return {"FONTCONFIG_FILE": str(path)}


def inspect(path: Path, env: Mapping[str, str] | None = None) -> Chromium | None:
    if not path.is_file():
        return None
    whole = {**os.environ, **(env or {})}
    said = subprocess.run([path, "--version"], capture_output=True, text=True, env=whole)
    return Chromium(path, said.stdout.strip(), env or {}) if said.returncode == 0 else None


@contextmanager
def launched(found: Chromium | None = None) -> Iterator[Browser]:
    """A browser without a window. While it runs, its thread has an event loop of its own."""
    found = found or find()
    if found is None:
        raise ServerError(HOW_TO_GET_IT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.path,
            args=list(ARGUMENTS),
            env={**os.environ, **found.env},
            timeout=PATIENCE * 1000,
        )
        try:
            yield browser
        finally:
            browser.close()
