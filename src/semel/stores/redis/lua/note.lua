#!lua
-- note: remember an event of a provider, or only ask.
-- alone: its one key is the bucket's list of events, by when each is forgotten
-- takes: event keep
-- gives: whether it was noted before, now
-- why: of many that note it at once, one is the first.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local before = redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0
if before == 0 and ARGV[2] ~= '' then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
end
return {before, now}
