"""The outbox: effects outside the database, written in a transaction and delivered afterwards.

Three jobs, three words. An application *registers* who delivers effects of a name, a transaction
*enqueues* an effect, and a worker *delivers* it (`semel.worker`, `semel.core.delivery`).

effects      registering who delivers them; enqueuing one in the application's own transaction
webhook      the ready deliverer for signed HTTP
signatures   signatures of Standard Webhooks
"""
