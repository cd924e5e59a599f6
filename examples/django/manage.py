"""Django's own commands: ``manage.py migrate`` makes the shop's tables and semel's."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
