#!lua flags=allow-oom
-- take: a worker begins a deferred request, under a new fence.
-- event: take
-- takes: identity seen fence lease
-- gives: as every write
-- why: of two workers that saw the same record one burns the fence the other saw.
local seen, fence = ARGV[2], ARGV[3]
local found = look()
if not found then return lost() end
if found.state == 'pending' and found.fence == seen then
  local leased_until = later(ARGV[4])
  change(found, {
    state = 'in_progress', fence = fence, leased_until = leased_until, reason = false,
  }, leased(found.on_lapse), leased_until)
  return applied()
end
if found.state == 'in_progress' and found.fence == fence and not lapsed(found) then
  return applied()
end
return lost()
