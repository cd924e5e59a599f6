"""Django migrations, one for each file of `semel/stores/sql/migrations`.

Each of them brings semel's schema up to date with its own SQL files.
"""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from semel.stores.django.backend import migrate


class BringUpToDate(Operation):
    """Applies what the database lacks of semel's schema. It cannot be reversed."""

    reduces_to_sql = False
    reversible = False

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: Django has no models of these tables."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        migrate(schema_editor.connection)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Nothing: reversing a migration must not delete records."""

    def describe(self) -> str:
        return "Bring semel's tables up to date"
