"""The contract of the stores: every operation a flow may yield, with its replies.

requests      on the way of a request: claim, read, complete
maintenance   for workers, maintenance and operators
outbox        effects, and events of providers
audit         audit, erasure, encryption
acts          what people and evidence do to records
handler       what a handler comes to, and operations that no store performs
"""
