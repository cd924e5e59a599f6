#!lua flags=allow-oom
-- forget: remove a settled record whose time is over.
-- event: forget
-- takes: identity seen
-- gives: as every write
-- why: by the store's clock, and only settled states: an unsettled record never becomes free by time.
--      The reaper shows no fence, and leaves what is completed to be expired first.
local seen = ARGV[2]
local reaping = seen == ''
local found = look()
if not found then return reaping and {0, now} or gone() end
local settled = found.state == 'failed_retryable' or found.state == 'expired'
  or (found.state == 'completed' and not reaping)
if settled and found.forget_at and found.forget_at <= now and (reaping or found.fence == seen) then
  remove(found)
  return gone()
end
return reaping and {0, now} or lost()
