"""PostgreSQL: the store for production.

::

    backend    PostgresBackend: opens pools on first use, per process and per event loop
    settings   the URL taken apart; no password leaves it
    errand     one operation's way: its statements, sent again where that is safe     (no I/O)
    link       one connection: a statement as a generator that says what it waits for (no waiting)
    kinds      operations as rows of a statement for many, and its rows as replies     (no I/O)
    blocking   pool and waiting for threads
    awaited    pool and waiting for event loops
    joined     the same store inside the caller's own transaction
    transaction_steps   begin, lock, savepoint, commit as exchanges of statements      (no I/O)
    transactions, transactions_awaited   transactions that semel begins, and their pools
    handed     the connection a handler gets in one of them, and its end
    faults     what went wrong, and what that means; driver errors are judged here and only here

Why not psycopg's own connections and pool: measured side by side on a busy machine, a bare claim
or completion took 35-65 µs of CPU through ``psycopg.pq``, 130-165 through ``AsyncConnection`` and
205-290 with its pool; and their cancellation waits for the server, which is what a deadline must
not do. psycopg still opens the connections (hosts, TLS, passwords) and serves ``on(connection)``.
"""

from semel.stores.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
