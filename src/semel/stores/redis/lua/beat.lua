#!lua flags=allow-oom
-- beat: a worker is there, or ends.
-- alone: its keys are the list of workers, and until when each should be heard of again
-- takes: id about lease?
-- gives: now
-- why: one that ends in order is not missed.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[1])
else
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return {now}
