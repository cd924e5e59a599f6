"""PostgreSQL: the store for production.

::

    backend             PostgresBackend: opens pools on first use, per process and per event loop
    settings            the URL, parsed; no password leaves it
    failover            which host has the newest timeline                            (no I/O)
    errors              driver errors, classified                                     (no I/O)
    batch_columns       operations as arrays of a statement for many                  (no I/O)
    connection          one connection: a statement is a generator that yields what it waits for
    pool_sync           pool and waiting for threads
    pool_async          pool and waiting for event loops
    caller_transaction  the same store inside the caller's own transaction
    transaction_steps   begin, lock, savepoint, commit as exchanges of statements     (no waiting)
    transactions_sync, transactions_async   transactions that semel begins, and their pools
    handler_connection  the psycopg connection that a handler gets in one of them
    migration           the schema

Why not psycopg's own connections and pool: measured side by side on a busy machine, a bare claim
or completion took 35-65 µs of CPU through ``psycopg.pq``, 130-165 through ``AsyncConnection`` and
205-290 with its pool; and their cancellation waits for the server, which is what a deadline must
not do. psycopg still opens the connections (hosts, TLS, passwords) and serves ``on(connection)``.
"""

from semel.stores.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
