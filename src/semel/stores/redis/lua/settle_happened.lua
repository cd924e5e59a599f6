#!lua flags=allow-oom
-- settle_happened: evidence says that it happened; store the answer and burn the old fence.
-- event: settle: it happened
-- takes: identity seen fence snapshot retention tombstone by why
-- gives: as every write
-- why: with its fence burnt, the late holder's own completion is refused and it answers from here.
local seen, fence = ARGV[2], ARGV[3]
local found = look()
if not found then return lost() end
if found.state == 'unknown' and found.fence == seen then
  audit(found, 'settle', 'completed', ARGV[7], ARGV[8])
  local fields = completed(ARGV[4], ARGV[5], ARGV[6], ARGV[7] .. ': ' .. ARGV[8])
  fields.fence = fence
  change(found, fields, 'expire', fields.expires_at)
  return applied()
end
if found.state == 'completed' and found.fence == fence then return applied() end
return lost()
