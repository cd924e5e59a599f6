#!lua flags=allow-oom
-- complete: store the answer.
-- event: complete
-- short: its keys are the record, its bucket's indexes lease, resume, ask and expire, and with a
--        resource made
-- takes: identity fence snapshot retention tombstone resource?
-- gives: as every write
-- why: also from unknown, for the fence that last held it: the late result is evidence. A lease that
--      is past does not matter as long as nobody acted on it.
local fence, resource = ARGV[2], ARGV[6]
local found = redis.call('HMGET', KEY, 'state', 'fence', 'duty')
local state, duty = found[1], found[3]
if not state or found[2] ~= fence then return lost() end
if state == 'completed' then
  return {1, now, state, false, redis.call('HGET', KEY, 'expires_at')}
end
if state ~= 'in_progress' and state ~= 'unknown' then return lost() end
local expires_at = now + ARGV[4]
local due, forget_at = string.format('%.0f', expires_at), string.format('%.0f', expires_at + ARGV[5])
local INDEX = duty == 'lease' and KEYS[2] or duty == 'resume' and KEYS[3] or KEYS[4]
local made = resource and redis.sha1hex(redis.call('HGET', KEY, 'tenant') .. '\0' .. resource)
redis.call('ZREM', INDEX, identity)
redis.call('ZADD', KEYS[5], due, identity)
redis.call('HSET', KEY, 'state', 'completed', 'snapshot', ARGV[3], 'expires_at', due,
  'forget_at', forget_at, 'duty', 'expire', 'due_at', due)
redis.call('HDEL', KEY, 'leased_until', 'request', 'reason', 'resource')
if resource then
  redis.call('HSET', KEY, 'resource', resource)
  redis.call('ZADD', KEYS[6], 0, made .. identity)
end
return {1, now, 'completed', false, expires_at}
