#!lua flags=allow-oom
-- reseal: exchange a part of a record for other bytes that mean the same.
-- takes: identity seen part old new
-- gives: as every write
-- why: whoever wrote it meanwhile, under whatever fence, keeps what was written.
local found = look()
if found and found.fence == ARGV[2] and redis.call('HGET', KEY, ARGV[3]) == ARGV[4] then
  redis.call('HSET', KEY, ARGV[3], ARGV[5])
  return applied()
end
return lost()
