"""What people do with records.

operator   look, ask, settle, give up
records    lists of records, a page at a time
ledger     a provider's list compared with ours
rotation   encrypt anew under the current key
erasure    erase a tenant
"""
