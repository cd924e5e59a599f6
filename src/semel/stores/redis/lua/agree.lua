#!lua
-- agree: put terms on record.
-- alone: its key is the list of all terms
-- takes: id said
-- gives: what they say, now
-- why: content names them, so nobody ever changes them.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return {redis.call('HGET', KEYS[1], ARGV[1]), now}
