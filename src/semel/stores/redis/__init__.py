"""Redis, Valkey, Sentinel and clusters: the fast store, which may lose keys in a failover.

::

    backend            RedisBackend: opens pools on first use, per process and per event loop
    settings           the URL, parsed; it never prints the password
    commands           the names of keys, the buckets, the scripts of lua/ and how they are called
    layout             a record as one string, and the order of an index
    replies            answers of scripts, parsed into records
    plans              operations of requests: which calls they are, what the answers mean  (no I/O)
    plans_maintenance  the same for workers, maintenance, lists and audit, over all buckets (no I/O)
    plans_notables     the same for notables, and for workers last seen                     (no I/O)
    operation_retry    one operation with all its retries; which node serves which bucket   (no I/O)
    credentials        who a new connection logs in as
    connection         pipelines, whose reply is next, login, the checks of a server        (no I/O)
    pool_sync          connections for threads
    pool_async         connections for event loops
    errors             what can go wrong, and what it means

The theory, from a key to an answer:

**Buckets.** Redis Cluster divides keys into slots, and one script may touch one slot only. So the
first ten bits of an identity name one of 1,024 buckets, and the bucket is the hash tag of every key
that belongs to it: its records, its indexes, its audit. Everything a script needs lies in one slot.
Buckets have the order of identities, so lists read them one after the other.

**Scripts.** Every operation that a request awaits is one call of one Lua script. Redis runs scripts
one at a time, so a script is the atomic step. It checks everything before its first write, because
a script that fails half way is not undone. It takes the time from the server's clock. Every script
is idempotent per fence: called again with the same fence, it answers as it did the first time. This
is why a call whose answer was lost may simply be sent again.

**Pipelines.** One connection to each node serves all threads of a process, or all tasks of an event
loop. What waits at the same time is written together. Nothing is delayed so that others can join.

**Order of answers.** A connection answers in the order in which it was asked, and answers carry no
name. `connection.ReplyQueue` counts them off. If one answer is missing, no later one can be trusted
to belong to its caller, so a connection that was silent until a deadline is closed, and everything
that was sent over it is tried again or in doubt.

**Doubt.** A batch has a flag ``sent``, set before its bytes are written. If the connection breaks
before that, the operation did not happen; after that, it may have happened, and only the same call
with the same fence can tell. If time runs out first, the caller gets StoreUnavailable with
``applied=None``.

**Given up before it left.** A caller that is cancelled, or whose time is up, while its batch is
still queued must never see it done later: the caller was told that it did not happen. So a pipeline
is made of batches that are still awaited, at the moment it is written. A thread takes its batch out
of the queue under the connection's lock; an event loop drops batches whose future is done. After
the write, nothing is taken back.

**Failover.** A node that cannot be reached may have been replaced. The topology is then doubtful,
and the next operation refreshes it from any node that answers. MOVED and ASK redirect a call,
TRYAGAIN and CLUSTERDOWN make it wait, until its deadline. A replica decides nothing: it refuses
scripts with READONLY. Where Sentinels watch a primary, more than half of them must say who it is,
about once a second, and the newest epoch counts. Replication is asynchronous, so a failover may
lose what was acknowledged: a new primary notes whom it replaced. With ``wait_replicas``, a pipeline
ends with a write and a WAIT, and what too few replicas have is in doubt, never a success.

**First try.** Nearly every operation is one call that succeeds. `pool_async.FirstTry` sends it as
it is; only a fault starts the generator in `operation_retry`, with the first try as its first
attempt.

Why not redis-py's clients: they hide whether a command was sent before its connection broke, which
is the difference between "did not happen" and "may have happened". Their cluster clients send again
as they see fit, and exist twice. Measured side by side they took several times the CPU
(docs/contributing/decisions.md). hiredis packs and parses.
"""

from semel.stores.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
