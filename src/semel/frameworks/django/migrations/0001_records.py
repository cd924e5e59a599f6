"""semel's tables, from its SQL files."""

from collections.abc import Sequence
from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from semel.frameworks.django.migrations import BringUpToDate


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[Sequence[tuple[str, str]]] = ()
    operations: ClassVar[Sequence[Operation]] = (BringUpToDate(),)
