#!lua flags=allow-oom
-- purge_workers: forget workers that have long been silent.
-- alone: its keys are the list of workers, and until when each should be heard of again
-- takes: memory limit
-- gives: how many, now
-- why: one that is killed does not say goodbye.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local silent = redis.call('ZRANGE', KEYS[2], '-inf', string.format('%.0f', now - ARGV[1]),
  'BYSCORE', 'LIMIT', 0, ARGV[2])
if #silent > 0 then
  redis.call('ZREM', KEYS[2], unpack(silent))
  redis.call('HDEL', KEYS[1], unpack(silent))
end
return {#silent, now}
