"""What operators do with records.

operator   look, ask, settle, give up, evict, erase a tenant
story      all that is known of one key, as a timeline
forecast   what a retry would get now
doubts     unknown outcomes by route and reason
decisions  what a person says of an unknown outcome, as evidence
approvals  the two-person rule for what cannot be undone
mismatches keys that came with another request, by route and tenant
bulk       acts on many things, with the result of each
lists      lists of records and effects, newest first, filtered, by pages
counts     how many records there are: exactly what is unsettled, the rest by a sample
newest     how records are listed in order of time without an index of it
trace_link the address of the tracing system's search, for one record
doctor     whether a store and its settings are fit for use, and maintenance runs
coverage   which routes of an application change something, and whether keys count there
ledger     a provider's ledger compared with our records
rotation   encrypts stored values again, under the current key
"""
