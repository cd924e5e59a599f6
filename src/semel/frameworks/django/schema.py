"""An operation of Django's migrations that applies semel's own SQL files."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from semel.stores.django.database import migrate


class BringUpToDate(Operation):
    """Whatever of semel's schema the database lacks. There is no way back."""

    reduces_to_sql = False
    reversible = False

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's models know nothing of these tables."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        migrate(schema_editor.connection)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Records are not thrown away by turning a migration back."""

    def describe(self) -> str:
        return "Bring semel's tables up to date"
