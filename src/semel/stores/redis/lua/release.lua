#!lua flags=allow-oom
-- release: nothing happened, a retry may run; a deferred request may be put back in the queue.
-- event: release
-- event: release, back to the queue
-- takes: identity fence retention requeue reason?
-- gives: as every write
-- why: never from unknown: once others were told "may have happened", only evidence decides.
local requeue, reason = number(ARGV[4]), ARGV[5] or false
local found = look()
if not found or found.fence ~= ARGV[2] then return lost() end
if found.state == 'failed_retryable' or (requeue and found.state == 'pending') then
  return applied()
end
if found.state ~= 'in_progress' then return lost() end
if requeue and found.patience then
  local fields, due = queued(found, now + requeue, reason)
  change(found, fields, 'run', due)
else
  local fields = released(ARGV[3], reason)
  change(found, fields, 'forget', fields.forget_at)
end
return applied()
