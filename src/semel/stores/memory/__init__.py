"""``memory://``: records in a dictionary. The executable reading of the state table, for tests.

backend  what the URL names, in both colours
records  claims, reads and writes of one record
fields   a record as it is kept, and a line for each kind of write
upkeep   what is due, maintenance
outbox   effects and events
"""

from semel.stores.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
