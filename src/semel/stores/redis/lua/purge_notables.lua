#!lua flags=allow-oom
-- purge_notables: forget notables whose time is over.
-- alone: its one key is a bucket's stream of notables
-- takes: limit
-- gives: how many, now
-- why: by the store's clock. Applications keep theirs for different times: each one is looked at.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local past = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  if #past >= tonumber(ARGV[1]) then break end
  if tonumber(entry[2][4]) <= now then past[#past + 1] = entry[1] end
end
if #past > 0 then redis.call('XDEL', KEYS[1], unpack(past)) end
return {#past, now}
