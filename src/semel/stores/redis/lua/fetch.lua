#!lua flags=allow-oom
-- fetch: the whole answer of a completed record, as its fence has it.
-- takes: identity fence
-- gives: now, the answer; nil when it is not there
-- why: as read.
local found = look()
if not found or found.state ~= 'completed' or found.fence ~= ARGV[2] then return {now, false} end
return {now, redis.call('GETRANGE', KEY, answer_start(found), -1)}
