"""Redis, Valkey and their clusters: the fast store, which may lose keys on a failover.

::

    backend     RedisBackend: opens links on first use, per process and per event loop
    settings    the URL taken apart; no password leaves it
    keys        the names of keys; buckets, which are the hash tags of a cluster
    lua/        one script for each operation; scripts puts them together
    plans       operations as calls of scripts, and their answers as replies            (no I/O)
    rounds      the same for workers, maintenance and operators, over all buckets       (no I/O)
    answers     what scripts answer, into records
    errand      one operation's way: calls sent again where that is safe                (no I/O)
    parcels     calls of one errand to one node, and the order of answers on a link     (no I/O)
    greeting    what is said first on a link, and what is checked then                  (no I/O)
    topology    which node has which bucket
    blocking    links and waiting for threads
    awaited     links and waiting for event loops
    faults      what went wrong, and what that means; errors are judged here and only here

Why not redis-py's clients: they hide whether a command was sent before its link broke, which is
the difference between "did not happen" and "may have happened"; their cluster clients are twins of
some thousand lines that send again what they see fit; and measured side by side they took several
times the CPU of this (docs/contributing/decisions.md). hiredis packs and parses.
"""

from semel.stores.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
