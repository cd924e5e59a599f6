"""From a server's bytes to an exchange and back. Nothing here knows the states of a record.

pipeline                        find the policy, admit, open: the same for all adapters
exchange                        what every exchange of a process does
exchange_async, exchange_sync   it performs its operations: awaited, or blocking
asgi, asgi_exchange             ASGI applications
wsgi                            WSGI applications
view_async, view_sync           views of frameworks
once_async, once_sync           functions done `once`
gate, gated                     dependencies run for every request, the endpoint once
routes, tags, policy_in_force   which policy rules a request
inventory, openapi              all routes of an application, and what they promise
limits                          limits and breaker, before the store is asked
worker_runs                     a stored request sent through its application again
request_events                  one event for what a request came to
body                            bodies on their way in and out
framework_internals             private names of frameworks
"""
