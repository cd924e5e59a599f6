"""PostgreSQL: the store for production.

::

    backend             PostgresBackend: opens pools on first use; migrates and examines the schema
    settings            the URL, parsed; no password leaves it
    failover            which host has the newest timeline                            (no I/O)
    errors              driver errors, classified                                     (no I/O)
    values              parameters, columns of a batch, cells of a row                (no I/O)
    connect             opens connections, with the password of the moment
    connection          one connection: a statement is a generator that yields what it waits for
    pool_sync           pools and waiting for threads
    pool_async          pools and waiting for event loops
    psycopg_async       psycopg's own connections: the caller's, and the one that a handler gets
    psycopg_sync        the same for threads, written by `python -m tools.twins`
    transaction         what is sent for each step of a handler's transaction    (no waiting)

Why not psycopg's own connections and pool: measured side by side on a busy machine, a bare claim
or completion took 35-65 µs of CPU through ``psycopg.pq``, 130-165 through ``AsyncConnection`` and
205-290 with its pool; and their cancellation waits for the server, which is what a deadline must
not do. psycopg still opens the connections (hosts, TLS, passwords) and serves ``on(connection)``.
"""

from semel.stores.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
