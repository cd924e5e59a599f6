#!lua flags=allow-oom
-- complete: store the answer.
-- event: complete
-- short: its keys are the record, its bucket's index, the hash beside the record, and with a resource
--        the bucket's index "made"
-- takes: identity fence snapshot retention tombstone resource?
-- gives: as every write
-- why: also from unknown, for the fence that last held it: the late result is evidence. A lease that
--      is past does not matter as long as nobody acted on it.
local fence, snapshot, resource = ARGV[2], ARGV[3], ARGV[6]
local text = redis.call('GET', KEY)
if not text or string.sub(text, 4, 19) ~= fence then return lost() end
local state, on_lapse, has, _, created_at, _, expires_at, _, terms, size = struct.unpack(HEAD, text)
if state == COMPLETED then return {1, now, COMPLETED, false, expires_at} end
if state ~= IN_PROGRESS and state ~= UNKNOWN then return lost() end
local origin = string.sub(text, HEAD_SIZE + 1, HEAD_SIZE + size)
expires_at = now + ARGV[4]
if has >= HAS_MORE then
  redis.call('HDEL', KEYS[3], 'request', 'resource', 'patience', 'abandon_at')
  has = redis.call('EXISTS', KEYS[3]) * HAS_MORE
end
if resource then
  local tenant = string.match(origin, '%z([^%z]*)')
  redis.call('HSET', KEYS[3], 'resource', resource)
  local digest = string.sub(redis.sha1hex(tenant .. '\0' .. resource), 1, 16)
  redis.call('ZADD', KEYS[4], 0, digest .. identity)
  has = HAS_MORE
end
if has < HAS_MORE then has = 0 end
redis.call('SET', KEY, struct.pack(HEAD, COMPLETED, on_lapse, has + HAS_ANSWER, fence, created_at, 0,
  expires_at, expires_at + ARGV[5], terms, size, 0) .. origin .. snapshot)
redis.call('ZADD', KEYS[2], score(5, expires_at), identity)
return {1, now, COMPLETED, false, expires_at}
