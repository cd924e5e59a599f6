#!lua flags=allow-oom
-- renew: push the end of the lease away.
-- event: renew
-- takes: identity fence lease
-- gives: as every write
-- why: a lease that is past is not revived; others may already have been told that it lapsed.
local found = look()
if found and found.state == 'in_progress' and found.fence == ARGV[2] and not lapsed(found) then
  local leased_until = later(ARGV[3])
  change(found, {leased_until = leased_until}, leased(found.on_lapse), leased_until)
  return applied()
end
return lost()
