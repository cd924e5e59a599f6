#!lua
-- accept: insert a pending record with its request unless the key is too old to start one, or read
--         what is there.
-- event: accept
-- takes: identity fence fingerprint fields tenant method path key on_lapse patience fresh_until terms
--        request
-- gives: 2, now: stored · 3: too old · else the fields of the record, then now
-- why: as claim.
local fence, patience, fresh_until = ARGV[2], tonumber(ARGV[10]), number(ARGV[11])
local row = brief()
if row[1] then
  if row[2] == fence and row[1] == 'pending' then return {2, now} end
  row[13] = now
  return row
end
if fresh_until and fresh_until < now then return {3} end
local deadline = digits(now + patience)
redis.call('HSET', KEY, 'state', 'pending', 'fence', fence, 'fingerprint', ARGV[3],
  'fields', ARGV[4], 'tenant', ARGV[5], 'method', ARGV[6], 'path', ARGV[7], 'key', ARGV[8],
  'on_lapse', ARGV[9], 'created_at', digits(now), 'leased_until', deadline, 'duty', 'run',
  'due_at', digits(now), 'patience', digits(patience), 'abandon_at', deadline,
  'terms', ARGV[12], 'request', ARGV[13])
place(nil, 'run', now)
redis.call('ZADD', DEADLINE, deadline, identity)
return {2, now}
