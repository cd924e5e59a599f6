"""MariaDB and MySQL: the store for production where one of them is there already.

::

    backend        MysqlBackend: opens pools on first use, per process and per event loop
    settings       the URL, parsed; no password leaves it
    errors         driver errors, classified                                          (no I/O)
    values         values as SQL literals; columns of a batch                         (no I/O)
    protocol       packets out and result sets in; the handshake                      (no I/O)
    connection     one blocking connection, by PyMySQL
    pool_sync      the pool for threads
    pool_async     connections by asyncmy, and their pool
    migration      the schema
"""

from semel.stores.mysql.backend import MysqlBackend

__all__ = ["MysqlBackend"]
