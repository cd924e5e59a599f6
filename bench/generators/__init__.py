"""Who sends the load: wrk where there is one, else a process of our own.

Each is a program that prints what it measured as JSON:

pulse          HTTP requests, on connections that are kept open; load.lua is the same for wrk
pairs          claims and completions through a store, without HTTP
replays        reads of keys that are completed, through a store
redis_pairs    plain Redis commands, as a limit
group_commit   SQLite as fast as it goes, as a limit
upkeep         one step of maintenance in several tables, in turns
"""
