#!lua flags=allow-oom
-- evict: an operator removes a settled record before its time.
-- event: evict
-- takes: identity seen by why
-- gives: as every write
-- why: only settled states; what is in flight or unknown needs other means.
local found = look()
if not found then return gone() end
local settled = found.state == 'completed' or found.state == 'failed_retryable'
  or found.state == 'expired'
if settled and found.fence == ARGV[2] then
  audit(found, 'evict', nil, ARGV[3], ARGV[4])
  remove(found)
  return gone()
end
return lost()
