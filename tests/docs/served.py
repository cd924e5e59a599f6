"""The application of a page, started in the folder where a reader would have written it."""

import os
import sys
from importlib import import_module
from typing import Any


def load(app: str, folder: str) -> Any:
    os.chdir(folder)
    sys.path.insert(0, folder)
    module, _, name = app.partition(":")
    return getattr(import_module(module), name)


if "SEMEL_TEST_DOCS_APP" in os.environ:
    app = load(os.environ["SEMEL_TEST_DOCS_APP"], os.environ["SEMEL_TEST_DOCS_FOLDER"])
