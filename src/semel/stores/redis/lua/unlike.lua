#!lua flags=allow-oom
-- unlike: what of a record does not begin in a certain way.
-- takes: identity prefix
-- gives: fence, reason, request, journal, snapshot; nil where it begins so, no fence when there is none
-- why: what is encrypted begins with its key's id; what has the current one need not travel.
local row = redis.call('HMGET', KEY, 'fence', 'reason', 'request', 'journal', 'snapshot')
for place = 3, 5 do
  local held = row[place]
  if held and string.sub(held, 1, #ARGV[2]) == ARGV[2] then row[place] = false end
end
return row
