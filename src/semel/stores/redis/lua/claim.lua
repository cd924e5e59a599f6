#!lua
-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- short: its keys are the record, and its bucket's indexes lease and resume
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until terms
--        request?
-- gives: 2, now, leased_until, created_at: held · 3: too old · else the fields of the record, then now
-- why: one call, and nothing is written when the record exists. A lease that is past is not handed
--      out again. Out of memory this is refused, and nothing is begun that could not be ended.
local fence = ARGV[2]
if redis.call('EXISTS', KEY) == 1 then
  local row = brief()
  local leased_until = row[7] and tonumber(row[7])
  if row[2] == fence and row[1] == 'in_progress' and leased_until and leased_until > now then
    return {2, now, leased_until, tonumber(row[6])}
  end
  row[13] = now
  return row
end
local fresh_until = tonumber(ARGV[11])
if fresh_until and fresh_until < now then return {3} end
local leased_until = now + ARGV[10]
local due = string.format('%.0f', leased_until)
local duty = ARGV[9] == 'resume' and 'resume' or 'lease'
local INDEX = duty == 'resume' and KEYS[3] or KEYS[2]
redis.call('HSET', KEY, 'state', 'in_progress', 'fence', fence, 'fingerprint', ARGV[3],
  'fields', ARGV[4], 'tenant', ARGV[5], 'method', ARGV[6], 'path', ARGV[7], 'key', ARGV[8],
  'on_lapse', ARGV[9], 'created_at', string.format('%.0f', now), 'leased_until', due, 'duty', duty,
  'due_at', due, 'terms', ARGV[12])
if ARGV[13] then redis.call('HSET', KEY, 'request', ARGV[13]) end
redis.call('ZADD', INDEX, due, identity)
return {2, now, leased_until, now}
