"""The `semel` command's door. It imports nothing that may be missing, so that it can say so."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command line."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        sys.path.insert(0, str(Path.cwd()))  # as from its manage.py, a project finds its settings
    try:
        from semel.ops.commands import semel
    except ModuleNotFoundError as missing:
        if missing.name != "click":
            raise
        sys.exit("semel: the command line needs click; install it with: pip install 'semel[cli]'")
    semel(prog_name="semel")


if __name__ == "__main__":
    main()
