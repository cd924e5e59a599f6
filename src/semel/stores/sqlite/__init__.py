"""``sqlite:///file.db``: the default store, for one machine and any number of its processes.

backend       what the URL names, in both colours
engine        one writer thread with group commit, and a reading connection per thread
batch         many operations in one transaction
file          opening a file durably, running plans on it, naming its errors
transactions  the application's own writes and the record's, one transaction at a time
gate          who is next to have that transaction
handed        what a handler is given of it: a connection whose own commit is refused
"""

from semel.stores.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
