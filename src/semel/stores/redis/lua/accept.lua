#!lua
-- accept: insert a pending record with its request unless the key is too old to start one, or read
--         what is there.
-- event: accept
-- takes: identity fence on_lapse patience fresh_until terms origin request
-- gives: 2, now: stored · 3: too old · else the record, then now
-- why: as claim.
local fence, patience, fresh_until = ARGV[2], tonumber(ARGV[4]), number(ARGV[5])
local found = look()
if found then
  if found.fence == fence and found.state == 'pending' then return {2, now} end
  return {brief(), now}
end
if fresh_until and fresh_until < now then return {3} end
local deadline = now + patience
redis.call('SET', KEY, struct.pack(HEAD, PENDING, ARGV[3], HAS_MORE, fence, now, deadline, 0, now,
  ARGV[6], #ARGV[7], 0) .. ARGV[7])
redis.call('HSET', MORE, 'request', ARGV[8], 'patience', digits(patience),
  'abandon_at', digits(deadline))
place('run', now)
redis.call('ZADD', DEADLINE, digits(deadline), identity)
return {2, now}
