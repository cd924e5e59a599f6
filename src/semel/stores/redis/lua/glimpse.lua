#!lua flags=allow-oom
-- glimpse: what a list shows of one record.
-- takes: identity
-- gives: now, the record without its answer, the size of that, tries, the resource, how the answer
--        begins; empty when there is no record
-- why: requests and answers, which may be large, stay where they are.
local found = look()
if not found then return {now, '', false, 0, false, false} end
local start = answer_start(found)
local size = found.answered and redis.call('STRLEN', KEY) - start
local begins = found.answered and redis.call('GETRANGE', KEY, start, start + 16)
return {now, redis.call('GETRANGE', KEY, 0, start - 1), size, found.tries, found.resource or false, begins}
