#!lua flags=allow-oom
-- unlike: what of a record does not begin in a certain way.
-- takes: identity prefix
-- gives: fence, reason, request, journal, snapshot; nil where it begins so, no fence when there is none
-- why: what is encrypted begins with its key's id; what has the current one need not travel.
local found = look()
if not found then return {false, false, false, false, false} end
local from, start = HEAD_SIZE + found.origin_size, answer_start(found)
local more = redis.call('HMGET', MORE, 'request', 'journal')
local row = {
  found.fence, found.reason_size > 0 and redis.call('GETRANGE', KEY, from, start - 1), more[1], more[2],
  found.answered and redis.call('GETRANGE', KEY, start, -1),
}
for part = 3, 5 do
  local held = row[part]
  if held and string.sub(held, 1, #ARGV[2]) == ARGV[2] then row[part] = false end
end
return row
