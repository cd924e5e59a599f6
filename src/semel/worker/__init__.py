"""The worker: background loops that deliver effects, run stored requests, ask probes, and tidy up.

worker        runs the loops side by side; what a round of a loop is
deliveries    the outbox's loop: leases effects, calls their deliverers, records the result
stored_runs   runs deferred requests and abandoned operations through the application
reconciler    asks probes about unknown outcomes
maintenance   lapses leases, expires records; as a loop, or embedded. Counts keys of tenants
heartbeat     says that a worker is there, for operators
wake_up       listeners that wake a worker when the store has something new

**Loops.** A loop has `run_once()`: it does what is due and returns a `Round`, which says how much
was done and when there will be more. `Worker` runs each loop in a task of its own and rests between
rounds: until the time the round named, at most ``poll`` seconds, or until a listener wakes it.
Deliveries and stored runs do many things at once in a round, and share how (`ConcurrentLoop`). The
listener makes a worker prompt, never correct: everything is found by polling alone. A round that
raises is tried again after a growing pause. Any number of workers may run the same loops.

**Leases of effects.** The outbox has three parts, and each has its own word. An application
*registers* who delivers effects of a name (`Guard.delivers`). A transaction *enqueues* an effect
(`Operation.enqueue`, `Guard.enqueue`): the effect exists if and only if that transaction commits.
A worker *delivers* it. For that it takes a batch under a fence for the length of a lease
(`TakeEffects`), renews the lease while it delivers, and records the result with the same fence
(`MarkDelivered`, `MarkFailed`). A worker that dies, or that hangs past its lease, loses nothing:
another one takes the effect with another fence, and what the first one still writes is refused.

**At least once.** The provider's answer and its record are two writes in two systems, and a worker
can die between them. Then nobody here knows that the effect was delivered, and it is delivered
again. No order of the two writes avoids this: recorded first, the same crash would lose the effect.
So semel chooses at-least-once, bounds the tries, and keeps what fails for good as a dead letter.

**Once, by the downstream key.** Every try carries the same key, `Delivery.key`. It is derived from
the request's identity and the effect's name, or drawn when the effect is enqueued, and stored with
it. A provider with idempotency keys answers the second try with the result of the first, and a
receiver of webhooks drops an id that it has seen. Delivered at least once, taken once: that is as
close to exactly once as two systems can come.
"""
