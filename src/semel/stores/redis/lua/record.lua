-- Read before every script that works on one record: the clock, and the record as requests get it.
-- keys: the record first.
-- arguments: the identity first.
-- why: times come from the server's clock and nowhere else. They are written with %.0f, for Lua's own
--      way keeps 14 digits of 16. What is here is made anew by every call, so it is little.
local KEY, identity = KEYS[1], ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Of a large answer the head, which a script "fetch" gives whole.
local function brief()
  local row = redis.call('HMGET', KEY, 'state', 'fence', 'fingerprint', 'fields', 'on_lapse',
    'created_at', 'leased_until', 'expires_at', 'forget_at', 'snapshot', 'reason', 'retired_at')
  local answer = row[10]
  if answer and #answer > 32768 then row[10] = '\0' .. string.sub(answer, 1, 64) end
  return row
end

-- The answer of a write that was not done: 0 and the record as it was found.
local function lost()
  return {0, now, brief()}
end
