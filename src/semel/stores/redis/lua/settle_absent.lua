#!lua flags=allow-oom
-- settle_absent: evidence says that it did not happen and no longer can; burn the old fence.
-- event: settle: it did not
-- takes: identity seen fence retention by why journal?
-- gives: as every write
-- why: with its fence burnt, a holder that was only paused can no longer complete the record.
local seen, fence = ARGV[2], ARGV[3]
local found = look()
if not found then return lost() end
if found.state == 'unknown' and found.fence == seen then
  audit(found, 'settle', 'failed_retryable', ARGV[5], ARGV[6])
  local fields = released(ARGV[4], ARGV[5] .. ': ' .. ARGV[6])
  fields.fence, fields.journal = fence, ARGV[7]
  change(found, fields, 'forget', fields.forget_at)
  return applied()
end
if found.state == 'failed_retryable' and found.fence == fence then return applied() end
return lost()
