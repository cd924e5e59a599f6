"""``memory://``: records in a dictionary. The executable reading of the state table, for tests.

backend  what the URL names, in both colours
records  claims, reads and writes of one record
fields   what each write must show, and which fields it changes
upkeep   what is due, maintenance
outbox   effects and events
"""

from semel.stores.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
