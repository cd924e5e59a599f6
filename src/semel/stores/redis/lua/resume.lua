#!lua flags=allow-oom
-- resume: go on with a resumable operation whose holder's time is up, under a new fence.
-- event: lapse, declared resume
-- takes: identity seen fence lease
-- gives: as every write
-- why: the old holder may only be slow; its fence is burnt before anybody goes on.
local seen, fence = ARGV[2], ARGV[3]
local found = look()
if not found then return lost() end
if found.fence == seen and found.on_lapse == 'resume' and lapsed(found) then
  local leased_until = later(ARGV[4])
  change(found, {
    state = 'in_progress', fence = fence, leased_until = leased_until, snapshot = false,
    reason = false,
  }, 'resume', leased_until)
  return applied()
end
if found.state == 'in_progress' and found.fence == fence and not lapsed(found) then
  return applied()
end
return lost()
