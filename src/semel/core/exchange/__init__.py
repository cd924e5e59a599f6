"""One keyed request, in two halves: `claim` before the handler runs, `settle` after it.

Both are flows (`core/flow.py`): they yield operations and do no I/O. The adapter performs the
operations, and calls the handler between the halves. The order of the steps is the promise:

1. The fence is made before anything is sent, so that a claim whose reply was lost can be asked for
   again and is the same claim.
2. The claim is durable before the handler is called. Of two requests with one key one claims; the
   other reads the record and is answered from it, or waits, or is refused.
3. The answer is on record before it is sent. A client that has a success can rely on its replay. A
   client that has none tries again, and gets the same answer.
4. If that write is not acknowledged, the answer is held back: it is written again until the lease
   ends, then by `runtime/write_retries.py`. The client gets an error and tries again with its key.
5. If the handler fails in a way that leaves a doubt, the record becomes `unknown`, never free.

Each `yield` is a place where the process may die or another request may run. What holds at each of
them is explored in tests/proof/explorer.

    exchange           the object that holds everything about the request; the progress of its run
    admit              who asks, with which key, for what
    claim              the first half
    settle             the second half: is the answer kept, the key released, the outcome unknown
    answers            what a record says to a request that may not run; the status resource
    replay             how an answer looks the first time and every time after
    problems           every refusal, as an RFC 9457 document
    refusal_shapes     the same in the shapes of other APIs
    atomic             both halves in one transaction of the application
    deferred           the request is left to the worker
    shadow             keys are watched, and every request runs
    settings_changed   are keys still made the way the store remembers
"""
