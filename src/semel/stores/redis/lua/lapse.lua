#!lua flags=allow-oom
-- lapse: the holder's time is up; unknown, or where the claim declared it failed_retryable, a
--        deferred request pending again.
-- event: lapse
-- event: lapse, declared release
-- event: lapse, declared release, back to the queue
-- takes: identity seen retention
-- gives: as every write
-- why: the fence stays: the late holder's completion is evidence. An open receipt stays with unknown.
--      A resumable one is not lapsed but resumed. The sweeper shows no fence, and is told of what it
--      changed itself and nothing else. Without a retention, its terms are not on record, it is put
--      off: it would be the first of every round.
local seen, reason = ARGV[2], 'the lease ran out'
local sweeping = seen == ''
local found = look()
if not found or not (sweeping or found.fence == seen) then return sweeping and {0, now} or lost() end
local release = found.on_lapse == 'release'
if lapsed(found) and found.on_lapse ~= 'resume' then
  local fields, duty, due
  if release and found.patience then
    fields, due = queued(found, now, reason)
    duty = 'run'
  elseif release and ARGV[3] == '' then
    change(found, {}, 'lease', now + PUT_OFF)
    return {0, now}
  elseif release then
    fields = released(ARGV[3], reason)
    duty, due = 'forget', fields.forget_at
  else
    fields = {state = 'unknown', reason = reason}
    duty, due = 'ask', now
  end
  fields.tries = false
  change(found, fields, duty, due)
  return applied()
end
if sweeping then return {0, now} end
local done = release and (found.state == 'failed_retryable' or found.state == 'pending')
if done or (not release and found.state == 'unknown') then return applied() end
return lost()
