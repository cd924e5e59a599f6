"""``memory://``: records in a dictionary. The executable reading of the state table, for tests.

backend      what the URL names, blocking and async
records      claims, reads and writes of one record; the audit log
rows         a record as it is kept, and what each kind of write does to it
maintenance  what is due, rounds over all records, erasure and key rotation
outbox       effects, and events of providers
"""

from semel.stores.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
