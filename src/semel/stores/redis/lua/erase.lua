#!lua flags=allow-oom
-- erase: a settled record says nothing any more; that its key was used stays remembered.
-- event: erase
-- takes: identity seen by why
-- gives: as every write
-- why: the identity alone refuses a second run. It is forgotten when it would have been. One without
--      a fingerprint was erased before.
local found = look()
if not found then return lost() end
local settled = found.state == 'completed' or found.state == 'failed_retryable'
  or found.state == 'expired'
if settled and found.fence == ARGV[2] then
  local fingerprint, method = string.match(origin(found), '^(%Z*)%z%Z*%z(%Z*)%z')
  if fingerprint ~= '' then
    audit(found, 'erase', 'expired', ARGV[3], ARGV[4])
    change(found, {
      state = 'expired', snapshot = false, request = false, journal = false, resource = false,
      reason = 'erased', origin = '\0\0' .. method .. '\0\0\0',
    }, 'forget', found.forget_at)
  end
  return applied()
end
return lost()
