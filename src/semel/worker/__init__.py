"""The worker: background loops, woken promptly, stopped gracefully.

worker          the loops side by side
deliveries      takes effects that are due, has them delivered, records what came of it
stored_runs     deferred requests and abandoned operations
reconciler      asks probes about unknown outcomes
maintenance     leases lapse, records expire; also embedded in an application
wake_up         who tells a worker that there is something new
rounds          what one round of a loop did, and when to come again
tenant_counts   counts the keys of tenants where a cap is set
flow_runner     runs flows that ask a store and the application's own functions
calling         calls the application's functions, in its loop or in threads
lifespan        the lifespan of an ASGI application that requests are run through
"""
