#!lua
-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until terms
--        request?
-- gives: 2, now, leased_until, created_at: held · 0, now, the record · 3: too old
-- why: one call, and nothing is written when the record exists. A lease that is past is not handed
--      out again. Out of memory this is refused, and nothing is begun that could not be ended.
local fence, fresh_until = ARGV[2], number(ARGV[11])
local row = brief()
if row[1] then
  local leased_until = number(row[7])
  if row[2] == fence and row[1] == 'in_progress' and leased_until and leased_until > now then
    return {2, now, row[7], row[6]}
  end
  return {0, now, row}
end
if fresh_until and fresh_until < now then return {3} end
local leased_until, duty = later(ARGV[10]), leased(ARGV[9])
redis.call('HSET', KEY, 'state', 'in_progress', 'fence', fence, 'fingerprint', ARGV[3],
  'fields', ARGV[4], 'tenant', ARGV[5], 'method', ARGV[6], 'path', ARGV[7], 'key', ARGV[8],
  'on_lapse', ARGV[9], 'created_at', digits(now), 'leased_until', digits(leased_until),
  'duty', duty, 'due_at', digits(leased_until), 'terms', ARGV[12])
if ARGV[13] then redis.call('HSET', KEY, 'request', ARGV[13]) end
place(nil, duty, leased_until)
return {2, now, digits(leased_until), digits(now)}
