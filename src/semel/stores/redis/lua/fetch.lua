#!lua flags=allow-oom
-- fetch: the whole answer of a completed record, as its fence has it.
-- takes: identity fence
-- gives: now, the answer; nil when it is not there
-- why: as read.
local row = redis.call('HMGET', KEY, 'state', 'fence', 'snapshot')
if row[1] ~= 'completed' or row[2] ~= ARGV[2] then return {now, false} end
return {now, row[3]}
