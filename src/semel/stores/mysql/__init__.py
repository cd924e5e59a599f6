"""MariaDB and MySQL: the store for production where one of them is there already.

::

    backend        MysqlBackend: opens pools on first use; migrates and examines the schema
    settings       the URL, parsed; no password leaves it
    option_files   options as the servers' own clients have them
    driver_internals   private names of the drivers, checked when a backend is made
    errors         driver errors, classified                                          (no I/O)
    values         values as SQL literals; columns of a batch                         (no I/O)
    protocol       packets out and result sets in; the handshake                      (no I/O)
    transaction    what is sent for each step of a transaction                        (no I/O)
    pool_sync      blocking connections by PyMySQL, and their pools
    pool_async     connections by asyncmy, and their pool; that of transactions, by PyMySQL

    joined_stores         the store inside the caller's own transaction
    handler_connections   what a handler gets over semel's own transaction
"""

from semel.stores.mysql.backend import MysqlBackend

__all__ = ["MysqlBackend"]
