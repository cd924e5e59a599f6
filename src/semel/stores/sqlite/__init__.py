"""``sqlite:///file.db``: the default store, for one machine and any number of its processes.

**Durability.** The file uses write-ahead logging with ``synchronous=FULL``: a COMMIT returns after
the log is on disk. ``NORMAL`` is the usual advice and is faster, but it loses acknowledged commits
in a power cut. Opening checks that both settings took effect, and refuses a file where they did
not, such as one on a network file system. SQLite also keeps writing to a file that was deleted, so
the writer compares the open files with the paths before each transaction (`OpenFiles`).

**One writer thread.** SQLite has one writer at a time, and a sync takes most of a write's time. So
each process has one thread that writes (`SqliteWriter`). Operations queue up while the disk syncs.
The thread takes all that wait, up to a bound, runs them in one transaction, and replies after its
COMMIT: *group commit*, one sync for many callers. A single operation waits for nobody. Processes
take turns by SQLite's own write lock.

**One bad operation spoils no other.** In a batch, claims go as one statement and completions as
one; where a row was not as expected, each operation runs by itself. If the transaction is undone,
each operation gets a transaction of its own. Sending it again is safe, because every operation is
idempotent per fence.

**What a caller is told.** An operation that only waited in the queue can be taken back: it was not
applied. One that the writer has taken is in doubt once its caller's time is over, and so is a
COMMIT that failed: the log may hold it although the sync reported an error. Only a COMMIT that
never got its lock was surely not applied.

**Reads write nothing.** Lookups and replays run in the calling thread, on a read-only connection
of that thread.

**Forks.** SQLite's locks do not survive a fork: a child that uses the parent's connection can lose
committed data. Before a fork every connection is closed, and open transactions are undone. Parent
and child open the file again on their next use.

backend      what the URL names: the blocking and the async store, and forks
writer       the writer thread with its batches, and a reading connection per thread
connection   opens a file durably, runs plans on it, maps its errors; the one a handler is given
transaction  the application's writes and the record's, one transaction at a time
"""

from semel.stores.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
