-- Read before every script that works on one record: the clock, and the record as requests get it.
-- keys: the record first.
-- arguments: the identity first.
-- why: times come from the server's clock and nowhere else. What is here is made anew by every call,
--      so it is little. A record is one string, for a hash of as many fields takes twice the memory;
--      `layout.py` says what it holds. What few records have is in a hash beside it, "more".
local KEY, identity = KEYS[1], ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local PENDING, IN_PROGRESS, COMPLETED, FAILED_RETRYABLE, UNKNOWN, EXPIRED = 1, 2, 3, 4, 5, 6
local HAS_ANSWER, HAS_MORE = 1, 2
-- State, on_lapse, what it has, fence, created_at, leased_until or retired_at, expires_at, forget_at or
-- due_at, terms, and how long its origin and its reason are. They follow, then the answer.
local HEAD, HEAD_SIZE = '>BBBc16I8I8I8I8c8I4I4', 67

-- The place in the bucket's index: by duty, then by the millisecond in which it is due.
local function score(duty, due)
  return string.format('%.0f', duty * 17592186044416 + math.ceil(due / 1000))
end

-- The record; empty when there is none. Of a large answer the head, which a script "fetch" gives whole.
local function brief()
  local text = redis.call('GETRANGE', KEY, 0, 32767)
  if #text < 32768 then return text end
  local _, _, _, _, _, _, _, _, _, origin, reason = struct.unpack(HEAD, text)
  local start = HEAD_SIZE + origin + reason
  if redis.call('STRLEN', KEY) - start <= 32768 then return redis.call('GET', KEY) end
  return redis.call('GETRANGE', KEY, 0, start - 1)
    .. '\0' .. redis.call('GETRANGE', KEY, start, start + 63)
end

-- The answer of a write that was not done: 0 and the record as it was found.
local function lost()
  return {0, now, brief()}
end
