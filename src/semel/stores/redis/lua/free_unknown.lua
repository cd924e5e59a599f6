#!lua flags=allow-oom
-- free_unknown: an operator gives up on an unknown record and frees the key on purpose.
-- event: evict, forced and freed on purpose
-- takes: identity seen by why
-- gives: as every write
-- why: the one way an unsettled key becomes free; a person said so, with a reason that is audited.
local found = look()
if not found then return gone() end
if found.state == 'unknown' and found.fence == ARGV[2] then
  audit(found, 'free', nil, ARGV[3], ARGV[4])
  remove(found)
  return gone()
end
return lost()
