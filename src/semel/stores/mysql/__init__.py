"""MariaDB and MySQL: the store for production where one of them is there already.

::

    backend    MysqlBackend: opens pools on first use, per process and per event loop
    settings   the URL taken apart; no password leaves it
    literals   values as SQL                                                          (no I/O)
    exchange   packets out and result sets in: what is said, and what it means        (no I/O)
    kinds      operations as rows of a statement for many                             (no I/O)
    link       one blocking connection, by PyMySQL
    wire       one awaited connection, by asyncmy
    blocking   the pool for threads
    awaited    the pool for event loops
    migration  the schema
    faults     what went wrong, and what that means; driver errors are judged here and only here
"""

from semel.stores.mysql.backend import MysqlBackend

__all__ = ["MysqlBackend"]
