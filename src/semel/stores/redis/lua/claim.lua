#!lua
-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- short: its keys are the record, its bucket's index, and with a request the hash beside the record
-- takes: identity fence on_lapse lease fresh_until terms origin request?
-- gives: 2, now, leased_until, created_at: held · 3: too old · else the record, then now
-- why: one call, and nothing is written when the record exists. A lease that is past is not handed
--      out again. Out of memory this is refused, and nothing is begun that could not be ended.
local fence, on_lapse, origin, request = ARGV[2], ARGV[3], ARGV[7], ARGV[8]
local text = brief()
if text ~= '' then
  if string.sub(text, 4, 19) == fence then
    local state, _, _, _, created_at, leased_until = struct.unpack(HEAD, text)
    if state == IN_PROGRESS and leased_until > now then return {2, now, leased_until, created_at} end
  end
  return {text, now}
end
local fresh_until = tonumber(ARGV[5])
if fresh_until and fresh_until < now then return {3} end
local leased_until = now + ARGV[4]
local duty = on_lapse == '3' and 2 or 1
redis.call('SET', KEY, struct.pack(HEAD, IN_PROGRESS, on_lapse, request and HAS_MORE or 0, fence, now,
  leased_until, 0, 0, ARGV[6], #origin, 0) .. origin)
redis.call('ZADD', KEYS[2], score(duty, leased_until), identity)
if request then redis.call('HSET', KEYS[3], 'request', request) end
return {2, now, leased_until, now}
