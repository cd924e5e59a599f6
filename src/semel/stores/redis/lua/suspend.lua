#!lua flags=allow-oom
-- suspend: it may have happened; only evidence decides from here.
-- event: suspend
-- takes: identity fence probe_after reason?
-- gives: as every write
-- why: the fence stays, so that the holder's late result can still complete the record; there is no
--      expiry, so that it never becomes free by time. Nobody to be asked: due never, a dead letter.
local found = look()
if not found or found.fence ~= ARGV[2] then return lost() end
if found.state == 'unknown' then return applied() end
if found.state ~= 'in_progress' then return lost() end
change(found, {
  state = 'unknown', reason = ARGV[4] or false, tries = false,
}, 'ask', later(ARGV[3]))
return applied()
