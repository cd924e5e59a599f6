#!lua flags=allow-oom
-- complete: store the answer.
-- event: complete
-- takes: identity fence snapshot retention tombstone resource?
-- gives: as every write
-- why: also from unknown, for the fence that last held it: the late result is evidence. A lease that
--      is past does not matter as long as nobody acted on it.
local fence, resource = ARGV[2], ARGV[6]
local found = look()
if not found or found.fence ~= fence then return lost() end
if found.state == 'completed' then return applied() end
if found.state ~= 'in_progress' and found.state ~= 'unknown' then return lost() end
local fields = completed(ARGV[3], ARGV[4], ARGV[5], false)
fields.resource = resource or false
change(found, fields, 'expire', fields.expires_at)
if resource then redis.call('ZADD', MADE, 0, made(found.tenant, resource)) end
return applied()
