"""``memory://``: records in a dictionary. The executable reading of the state table, for tests.

backend   what the URL names, blocking and async
records   claims, reads and writes of one record; lists and rounds over all of them
rows      a record as it is kept, and what each kind of write does to it
outbox    effects, events of providers, and the audit log
notables  what operators want to see later, and the workers last seen
"""

from semel.stores.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
