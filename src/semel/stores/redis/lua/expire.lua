#!lua flags=allow-oom
-- expire: drop an answer that is promised no longer; the use of its key stays remembered.
-- event: expire
-- takes: identity
-- gives: 1, now, what is left · 0, now
-- why: by the store's clock.
local found = look()
if not found or found.state ~= 'completed' or found.expires_at > now then return {0, now} end
change(found, {
  state = 'expired', snapshot = false, request = false, journal = false, resource = false,
  origin = string.match(origin(found), '^%Z*%z%Z*%z%Z*%z%Z*%z') .. '\0',
}, 'forget', found.forget_at)
return applied()
