"""What semel decides. No I/O, no clock, no randomness, no thread.

states          the table of a record's life
records         what a record, a request and a response are
policy          what a route promises, and the plan made from it
flow            generators that yield operations and receive replies; their drivers
terms           what a record was promised under
maintenance     leases lapse, records expire, tenants are erased and counted
delivery        delivers one effect of the outbox
texts, frozen   texts that every store can keep; slotted classes

operations/     what a flow may ask for: the contract of the stores
request/        from the bytes of a request to its key, identity and fingerprint
exchange/       one keyed request: admit, claim, settle, answer
recovery/       recovery points, their journal, and whether a call was sent
unknown/        outcomes nobody knows: evidence, probes, webhooks, settlement
stored/         what is written down: snapshots, stored requests, short texts, encrypted values
"""
