"""``django://default``: records in the database of a Django project, by its alias in DATABASES.

backend      what the URL names: an alias, its settings as a store URL, semel's migrations
transaction  transactions on Django's connection: ORM writes and the record commit together
"""

from semel.stores.django.backend import DjangoBackend

__all__ = ["DjangoBackend"]
