"""``django://default``: records in the database of a Django project, by its alias in DATABASES.

::

    backend       what the URL names: semel's own pools, and transactions of Django's
    database      an alias taken apart: its engine, and semel's own backend on the same database
    mysql_options what Django tells its MySQL driver, as a URL for semel's own
    engines       what a transaction needs of SQLite and of PostgreSQL
    through       one operation at a time over Django's own connection
    transactions  transactions on Django's own connection: ORM writes and the record commit together
    migration     the schema, over Django's own connection
"""

from semel.stores.django.backend import DjangoBackend

__all__ = ["DjangoBackend"]
