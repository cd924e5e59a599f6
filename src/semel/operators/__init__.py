"""What operators do with records.

operator   look, ask, settle, give up, evict, erase a tenant
lists      lists of records and effects, by pages
doctor     whether a store and its settings are fit for use, and maintenance runs
coverage   which routes of an application change something, and whether keys count there
ledger     a provider's ledger compared with our records
rotation   encrypts stored values again, under the current key
"""
