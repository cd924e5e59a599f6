"""The entry point of `semel`. It imports nothing that may be missing, so that it can say so."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command line."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        sys.path.insert(0, str(Path.cwd()))  # as from its manage.py, a project finds its settings
    try:
        from semel.cli.commands import semel
        from semel.cli.output import show_errors_visibly
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        sys.exit("semel: the command line needs click; install it with: pip install 'semel[cli]'")
    show_errors_visibly()
    try:
        semel(prog_name="semel")
    except OSError as error:
        if error.errno not in _UNWRITTEN:
            raise
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"semel: cannot write: {error.strerror}")


_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full or broken disk; click handles a closed pipe."""


if __name__ == "__main__":
    main()
