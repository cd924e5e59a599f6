#!lua flags=allow-oom
-- retake: start a released record again under a new fence.
-- event: retake
-- takes: identity seen fence lease on_lapse
-- gives: as every write
-- why: in progress it has no forget_at, for it never becomes free by time. Request and journal stay.
--      The patience of a deferred one begins anew.
local seen, fence, on_lapse = ARGV[2], ARGV[3], ARGV[5]
local found = look()
if not found then return lost() end
if found.state == 'failed_retryable' and found.fence == seen then
  local leased_until = later(ARGV[4])
  change(found, {
    state = 'in_progress', fence = fence, leased_until = leased_until, on_lapse = on_lapse,
    abandon_at = found.patience and now + found.patience or false,
    snapshot = false, reason = false,
  }, leased(on_lapse), leased_until)
  return applied()
end
if found.state == 'in_progress' and found.fence == fence and not lapsed(found) then
  return applied()
end
return lost()
