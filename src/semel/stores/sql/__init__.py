"""What PostgreSQL, MySQL, SQLite and Django's databases share: plans, statements, batching.

::

    queries/                         the statements; where databases differ, one for each
    sent/                            what each database is sent, written by `tools.queries`
    dialect, migrations/             the SQL files of one database, loaded
    plans, plans_maintenance         the statements of each operation                  (no I/O)
    statements                       faults; a statement that may be sent again        (no I/O)
    rows                             rows into replies, checked                        (no I/O)
    migration                        the schema's version, and the rights a user needs (no I/O)
    batches                          many operations in one statement                  (no I/O)
    backend                          what the backends of servers share
    batcher_async, batcher_sync      when a batch leaves: event loops, threads
    pooled                           what both pools know: settings, age and number of connections
    pool_async, pool_sync            the pools for them and for transactions, whatever the server
    transaction                      transactions of handlers: who uses the connection, their end

Plans
-----
A plan is a generator. It yields a `Statement` (the name of a query and its parameters), is sent the
rows, and returns the reply. It does no I/O, so both colours and all databases run the same plan:
somebody else drives it (`statements.drive`, `adrive`, or the store). Every statement is
idempotent per fence: a second try with the same fence finds its own work and says so. That is why
a statement whose answer was lost is simply sent again.

Batching
--------
A round trip and a commit cost much more than a row. So concurrent operations of one kind travel as
rows of one statement, and one commit makes all of them durable.

*Which.* Claim, Complete, Renew and Read (`batches.batch_kinds`), each kind apart. An operation
with more than `MAX_BATCHED` bytes goes alone. A statement has at most `MAX_ROWS` rows and
`MAX_BYTES` bytes. Two claims (or reads) of one identity share a row, because its answer is true for
both; two completions of one identity go into different batches.

*When.* Up to `MAX_SINGLES` operations of a kind go at once, each alone: an idle server answers them
without any wait. Those that arrive meanwhile queue, and leave together when nothing of their kind
is in flight. No timer delays a batch; its size follows from the load.

*In which order.* Oldest first into the batch, sorted by identity within the statement: row locks
that everybody takes in one order cannot deadlock. The operations of a batch are concurrent (none
was acknowledged before another was queued), so any order among them is legal.

*When a row fails.* A row that is missing, or not as expected, decides nothing: its operation is
sent again alone, by its own plan. An operation that cannot be written as a row leaves the batch
before it is sent. If the statement as a whole fails and the cause may be one of its rows, or may be
gone, each operation is sent again alone with the same fence, and remembers the doubt: it may have
been applied already. If there was no connection or no time left, each caller gets the error.

*Slow rows hold up nobody.* A statement in flight for longer than `SLOW_AFTER` gives up its place
and the next batch leaves. Its identities are remembered (`SlowIdentities`); whoever asks for one of
them goes alone, so that a locked row cannot stop a second batch.

*Deadlines.* Every caller has its own. One whose time is up gets "not applied" while its operation
is still queued, and "unknown" once it was taken into a batch.

*Cancellation.* A caller that leaves the queue is skipped. One that leaves a batch in flight changes
nothing for the others: the statement goes on and its answer is read. An operation that is to be
sent again alone is not sent if its caller has left.
"""
