"""What operators do with records.

operator   look, ask, settle, give up, evict, erase a tenant
lists      lists of records and effects, by pages
ledger     a provider's ledger compared with our records
rotation   encrypts stored values again, under the current key
"""
