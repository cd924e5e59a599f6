#!lua flags=allow-oom
-- abandon: complete a deferred request that nobody ran in time.
-- event: abandon
-- takes: identity snapshot retention? tombstone?
-- gives: 1, now, what is left · 0, now
-- why: by the store's clock. What a worker has just taken is no longer pending. Whose terms are not on
--      record is put off: it would be the first of every round.
local found = look()
if not found or found.state ~= 'pending' or found.leased_until > now then return {0, now} end
if not ARGV[3] then
  redis.call('ZADD', DEADLINE, digits(now + PUT_OFF), identity)
  return {0, now}
end
local fields = completed(ARGV[2], ARGV[3], ARGV[4], 'nobody ran it in time')
change(found, fields, 'expire', fields.expires_at)
return applied()
