"""MariaDB and MySQL: the store for production where one of them is there already.

::

    backend        MysqlBackend: opens pools on first use; migrates and examines the schema
    settings       the URL, parsed; no password leaves it
    errors         driver errors, classified                                          (no I/O)
    values         values as SQL literals; columns of a batch                         (no I/O)
    protocol       packets out and result sets in; the handshake                      (no I/O)
    pool_sync      blocking connections by PyMySQL, and their pool
    pool_async     connections by asyncmy, and their pool
"""

from semel.stores.mysql.backend import MysqlBackend

__all__ = ["MysqlBackend"]
