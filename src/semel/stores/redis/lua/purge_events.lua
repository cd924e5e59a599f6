#!lua flags=allow-oom
-- purge_events: forget events whose time is over.
-- alone: its one key is the bucket's list of events, by when each is forgotten
-- takes: limit
-- gives: how many, now
-- why: by the store's clock.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local past = redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now), 'BYSCORE',
  'LIMIT', 0, ARGV[1])
if #past > 0 then redis.call('ZREM', KEYS[1], unpack(past)) end
return {#past, now}
