#!lua flags=allow-oom
-- retire: what a record made is no more; its answer is no longer true.
-- event: retire
-- takes: identity resource tenant
-- gives: 1, now · 0, now
-- why: compared again here, for the index was read before. Asked again the first time stays.
local found = look()
local mine = found and found.state == 'completed' and found.resource == ARGV[2]
if not mine or tenant(found) ~= ARGV[3] then return {0, now} end
if not found.retired_at then change(found, {retired_at = now}) end
return {1, now}
