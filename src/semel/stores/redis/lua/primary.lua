#!lua flags=allow-oom
-- primary: note which server is the primary, and that it has replaced another one.
-- alone: its one key is the note
-- takes: address
-- gives: how often it was replaced, when it last was, by whom; nil when it never was
-- why: replication is asynchronous, so the one before may have acknowledged what this one never got.
--      Sentinels forget who was the primary; whoever looks after the records must be able to see it.
local clock = redis.call('TIME')
local row = redis.call('HMGET', KEYS[1], 'address', 'changes', 'changed_at', 'before')
if row[1] ~= ARGV[1] then
  if row[1] then
    row[2], row[4] = (row[2] or 0) + 1, row[1]
    row[3] = string.format('%.0f', clock[1] * 1000000 + clock[2])
    redis.call('HSET', KEYS[1], 'changes', row[2], 'changed_at', row[3], 'before', row[4])
  end
  redis.call('HSET', KEYS[1], 'address', ARGV[1])
end
return {row[2] and tonumber(row[2]), row[3], row[4]}
