"""One keyed request, in two halves: `claim` before the handler runs, `settle` after it.

exchange           the object that holds everything about the request
admit              who asks, with which key, for what
claim              the first half
settle             the second half
outcome            what a handler's outcome means: keep, release or unknown
answers            what a record says to a request that may not run
replay             how an answer looks the first time and every time after
problems           every refusal, as an RFC 9457 document
atomic             both halves in one transaction of the application
deferred           the request is left to the worker
progress           the recovery points that a run has passed
settings_changed   are keys still made the way the store remembers
status             the status resource of an accepted request
"""
