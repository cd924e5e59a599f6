#!lua
-- write_notable: put a notable on record.
-- alone: its one key is a bucket's stream of notables
-- takes: most keep, then names and values of its fields
-- gives: now
-- why: refused where memory is short: nothing depends on it. The oldest of the bucket go.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
redis.call('XADD', KEYS[1], 'MAXLEN', '=', ARGV[1], '*', 'at', string.format('%.0f', now),
  'forget_at', string.format('%.0f', now + tonumber(ARGV[2])), unpack(ARGV, 3))
return {now}
