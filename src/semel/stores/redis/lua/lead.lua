#!lua flags=allow-oom
-- lead: be the leader, stay it, or follow one whose time is past.
-- alone: its one key is the office
-- takes: fence lease
-- gives: whether the asker leads, until when, now
-- why: of many that try at once, one succeeds.
local fence = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local row = redis.call('HMGET', KEYS[1], 'fence', 'leased_until')
if row[1] and row[1] ~= fence and tonumber(row[2]) > now then return {0, row[2], now} end
local leased_until = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'fence', fence, 'leased_until', leased_until)
return {1, leased_until, now}
