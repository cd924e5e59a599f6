"""Effects outside the database: the outbox and its worker, reconciliation, maintenance."""
