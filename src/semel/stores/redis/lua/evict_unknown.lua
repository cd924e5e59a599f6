#!lua flags=allow-oom
-- evict_unknown: an operator gives up on an unknown record; its use stays remembered.
-- event: evict, forced
-- takes: identity seen fence tombstone by why
-- gives: as every write
-- why: a tombstone answers later tries with "not executed again" instead of running them.
local seen, fence = ARGV[2], ARGV[3]
local found = look()
if not found then return lost() end
if found.state == 'unknown' and found.fence == seen then
  local forget_at = later(ARGV[4])
  audit(found, 'bury', 'expired', ARGV[5], ARGV[6])
  change(found, {
    state = 'expired', fence = fence, forget_at = forget_at, snapshot = false, request = false, journal = false,
    reason = ARGV[5] .. ': ' .. ARGV[6],
  }, 'forget', forget_at)
  return applied()
end
if found.state == 'expired' and found.fence == fence then return applied() end
return lost()
