#!lua flags=allow-oom
-- settle_call: evidence says that an operation's call happened; it can be resumed with its result.
-- event: settle: its call happened
-- takes: identity seen fence journal by why
-- gives: as every write
-- why: the lease is past from the start: whoever comes next, a request or the completer, resumes it.
local seen, fence = ARGV[2], ARGV[3]
local found = look()
if not found then return lost() end
if found.state == 'unknown' and found.fence == seen and found.on_lapse == 'resume' then
  audit(found, 'settle', 'in_progress', ARGV[5], ARGV[6])
  change(found, {
    state = 'in_progress', fence = fence, journal = ARGV[4], leased_until = now, tries = false,
    snapshot = false, reason = ARGV[5] .. ': ' .. ARGV[6],
  }, 'resume', now)
  return applied()
end
if found.state == 'in_progress' and found.fence == fence then return applied() end
return lost()
