#!lua flags=allow-oom
-- evict: an operator removes a settled record before its time.
-- event: evict
-- takes: identity seen
-- gives: as every write
-- why: only settled states; what is in flight or unknown needs other means.
local found = look()
if not found then return gone() end
local settled = found.state == 'completed' or found.state == 'failed_retryable'
  or found.state == 'expired'
if settled and found.fence == ARGV[2] then
  remove(found)
  return gone()
end
return lost()
