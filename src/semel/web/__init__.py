"""From a server's bytes to an exchange and back: how one request passes.

::

    server → adapter → pipeline → exchange → store
                                     ↓
                                application

1. The **adapter** (`asgi`, `wsgi`, `views`, `endpoint_gate`) is called by the server or by a
   framework. It alone knows the protocol: how a request is read, how a response is sent, where the
   application is called. A safe method without a key goes straight to the application.
2. The **pipeline** finds the route's policy (a listed route, else a tag, else the guard's own),
   reads the key and its owner (`admit`), and adds the body (`open`). It knows policies and
   frameworks' routers, but no record. It may refuse: a malformed key, no tenant, a body too large.
3. The **exchange** is one object for one keyed request. It drives two flows of the core: `claim`
   before the application is called, `settle` after it. A flow yields operations and gets replies;
   it decides, the exchange performs. So the rules are written once, and the blocking exchange and
   the awaited one differ only in how they wait. The exchange also holds what belongs to this
   process: the lease, the run, limits and events.
4. The **store** performs one operation in one atomic step. It knows records and fences, and
   nothing of HTTP.

The answer goes back the same way, and not before its record is written. The order is: claim, call
the application, write the answer, send it. A crash between two steps leaves a claim whose lease
runs out, or an answer that a retry gets; never an answer that nobody kept.

Nothing here knows the states of a record: `core` has them.

**Why the handler runs in its own task under ASGI.** A server cancels the task of a request when
the client hangs up, or when it shuts down. Cancelled in the middle, a handler may have charged a
card, and the write that says so would be lost. So the claim is made by the server's task, where a
cancellation is harmless: a flow that is interrupted there gives its claim back. The handler and
the write that settles its record are then one task of their own, which nobody cancels. The server's
task only waits for it. At shutdown the guard waits for such tasks (``drain=``). Under WSGI a thread
cannot be cancelled, so everything is done in the server's thread.

**Where the claim stands.** `asgi` and `wsgi` claim before the application is called: a replay costs
it nothing, and authentication must be outside. Frameworks that authenticate inside have adapters
that claim later: at the call of the view (Flask, Django), or at a gate before the endpoint, behind
its dependencies (FastAPI, Litestar: `endpoint_gate`). So authentication runs for replays, too.

Files::

    pipeline              find the policy, admit, open: the same for all adapters
    exchange              what every exchange does; the blocking one, also of functions (`once`)
    exchange_async        the exchange whose operations are awaited
    asgi, asgi_exchange   ASGI applications
    wsgi                  WSGI applications
    views                 views of Flask and Django
    endpoint_gate         dependencies run for every request, the endpoint once
    routes                the policy of a request: listed by path, or found by a router
    tags                  a tagged endpoint runs under its policy or not at all
    inventory, openapi    all routes of an application, and their OpenAPI document
    contract              what clients may rely on, from the policies
    shadow                routes in shadow: what passes untouched, what is counted
    worker_runs           a stored request sent through its application again
    request_events        one event for the result of a request
    body                  bodies of requests and responses
    framework_internals   private names of frameworks
"""
