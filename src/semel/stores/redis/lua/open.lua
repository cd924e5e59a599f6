#!lua flags=allow-oom
-- open: store an open receipt; the response has started and its body will not be kept.
-- event: advance
-- takes: identity fence snapshot
-- gives: as every write
-- why: the record stays in_progress: if the stream breaks off, the receipt is evidence.
local found = look()
if found and found.state == 'in_progress' and found.fence == ARGV[2] then
  change(found, {snapshot = ARGV[3]})
  return applied()
end
return lost()
