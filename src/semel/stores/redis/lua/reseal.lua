#!lua flags=allow-oom
-- reseal: exchange a part of a record for other bytes that mean the same.
-- takes: identity seen part old new
-- gives: as every write
-- why: whoever wrote it meanwhile, under whatever fence, keeps what was written.
local part = ARGV[3]
local found = look()
if not found or found.fence ~= ARGV[2] then return lost() end
local held
if part == 'snapshot' then
  held = found.answered and redis.call('GETRANGE', KEY, answer_start(found), -1)
else
  held = redis.call('HGET', MORE, part)
end
if held ~= ARGV[4] then return lost() end
change(found, {[part] = ARGV[5]})
return applied()
