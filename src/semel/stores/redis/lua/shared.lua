-- Read, after record.lua, before every script that changes one record in any way there is.
-- keys: the record, the hash beside it, then its bucket's indexes: due, deadline, made; of scripts that
--       put an act on record, then the bucket's audit. All lie in one slot, for the bucket is their
--       hash tag.
-- arguments: the identity first; what is optional comes last and is left out, a number that is
--       left out is empty.
-- why: everything is checked before the first write: a script that fails half way is not undone.
local MORE, DUE, DEADLINE, MADE = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STATES = {'pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'expired'}
local ON_LAPSE = {'unknown', 'release', 'resume'}
local DUTIES = {lease = 1, resume = 2, run = 3, ask = 4, expire = 5, forget = 6}
local NUMBERS = {}
for number, name in ipairs(STATES) do NUMBERS[name] = number end
local CHOICES = {unknown = 1, release = 2, resume = 3}
local PUT_OFF = 3600000000
local NEVER = 17592186044415000

local function number(text)
  return text and text ~= '' and tonumber(text) or nil
end

local function later(duration)
  local wait = number(duration)
  return wait and now + wait
end

local function digits(value)
  return type(value) == 'number' and string.format('%.0f', value) or value
end

local function time(value)
  return value > 0 and value or nil
end

-- What decisions are made on; nil when there is no record.
local function look()
  local text = redis.call('GETRANGE', KEY, 0, HEAD_SIZE - 1)
  if text == '' then return nil end
  local state, on_lapse, has, fence, created_at, first, expires_at, third, terms, origin, reason =
    struct.unpack(HEAD, text)
  local awaited = state == PENDING or state == IN_PROGRESS
  local asked = state == PENDING or state == UNKNOWN
  local found = {
    state = STATES[state], on_lapse = ON_LAPSE[on_lapse], fence = fence, created_at = created_at,
    leased_until = awaited and time(first) or nil, retired_at = not awaited and time(first) or nil,
    expires_at = time(expires_at), forget_at = not asked and time(third) or nil,
    due_at = asked and time(third) or nil, terms = terms, origin_size = origin,
    reason_size = reason, answered = has % HAS_MORE == HAS_ANSWER, more = has >= HAS_MORE, tries = 0,
  }
  if found.more then
    local more = redis.call('HMGET', MORE, 'patience', 'abandon_at', 'tries', 'resource')
    found.patience, found.abandon_at = number(more[1]), number(more[2])
    found.tries, found.resource = number(more[3]) or 0, more[4]
  end
  return found
end

local function lapsed(found)
  return found.state == 'in_progress' and found.leased_until and found.leased_until <= now
end

local function leased(on_lapse)
  return on_lapse == 'resume' and 'resume' or 'lease'
end

local function answer_start(found)
  return HEAD_SIZE + found.origin_size + found.reason_size
end

-- Fingerprint, tenant, method, path and key, each with NUL after it, then the digests of fields.
local function origin(found)
  return redis.call('GETRANGE', KEY, HEAD_SIZE, HEAD_SIZE + found.origin_size - 1)
end

local function tenant(found)
  return string.match(origin(found), '%z([^%z]*)')
end

-- By what it made, for whom: neither text can hold NUL. The digest first, to be found by its range.
local function made(found)
  return string.sub(redis.sha1hex(tenant(found) .. '\0' .. found.resource), 1, 16) .. identity
end

-- In one place of the index always: whose duty it is, from when on; nobody's, it is at the end.
local function place(duty, due)
  redis.call('ZADD', DUE, score(DUTIES[duty], due or NEVER), identity)
end

local function leave(found)
  if found.state == 'pending' then redis.call('ZREM', DEADLINE, identity) end
  if found.state == 'completed' and found.resource then redis.call('ZREM', MADE, made(found)) end
end

-- What few records have: written to the hash beside the record; false takes one away.
local function change_more(found, fields)
  local set, gone = {}, {}
  for _, name in ipairs({'request', 'journal', 'resource', 'tries', 'patience', 'abandon_at'}) do
    local value = fields[name]
    if value == false and found.more then
      gone[#gone + 1] = name
    elseif value then
      set[#set + 1] = name
      set[#set + 1] = digits(value)
    end
  end
  if #set > 0 then redis.call('HSET', MORE, unpack(set)) end
  if #gone > 0 then redis.call('HDEL', MORE, unpack(gone)) end
  if #set > 0 then return true end
  return found.more and (#gone == 0 or redis.call('EXISTS', MORE) == 1)
end

-- What a field is from now on: as it was where nothing is said, nil where it is false.
local function kept(said, old)
  if said == nil then return old end
  return said or nil
end

-- Whether a part is not what it was: false, where there is none, is nothing new.
local function other(said, there)
  return said ~= nil and (said ~= false or there)
end

-- Write some fields; false takes one away. With a duty the record changes its place. Its state tells
-- which times it has: slots of the head are shared. Where only those change, only the head is written.
local function change(found, fields, duty, due)
  if duty then place(duty, due) end
  local state = fields.state or found.state
  local awaited = state == 'pending' or state == 'in_progress'
  local asked = state == 'pending' or state == 'unknown'
  local settled = not awaited and not asked
  local leased_until = kept(fields.leased_until, found.leased_until)
  if state ~= found.state then leave(found) end
  if fields.state == 'pending' then redis.call('ZADD', DEADLINE, digits(leased_until), identity) end
  if state == 'completed' or state == 'expired' then
    fields.patience, fields.abandon_at = false, false
  end
  local answered, origin_size, reason_size = found.answered, found.origin_size, found.reason_size
  local rest
  if fields.origin or other(fields.reason, reason_size > 0) or other(fields.snapshot, answered) then
    local old = redis.call('GET', KEY)
    local from = fields.origin or string.sub(old, HEAD_SIZE + 1, HEAD_SIZE + origin_size)
    local start = answer_start(found)
    local reason = kept(fields.reason, string.sub(old, HEAD_SIZE + origin_size + 1, start))
    local answer = kept(fields.snapshot, answered and string.sub(old, start + 1) or nil)
    rest = from .. (reason or '') .. (answer or '')
    answered, origin_size, reason_size = answer, #from, #(reason or '')
  end
  local more = change_more(found, fields)
  local first = awaited and leased_until or settled and kept(fields.retired_at, found.retired_at)
  local third = settled and kept(fields.forget_at, found.forget_at)
  if asked then third = kept(duty and (due or false), found.due_at) end
  local head = struct.pack(HEAD, NUMBERS[state], CHOICES[fields.on_lapse or found.on_lapse],
    (answered and HAS_ANSWER or 0) + (more and HAS_MORE or 0), fields.fence or found.fence,
    found.created_at, first or 0, state == 'completed' and kept(fields.expires_at, found.expires_at) or 0,
    third or 0, found.terms, origin_size, reason_size)
  if rest then
    redis.call('SET', KEY, head .. rest)
  else
    redis.call('SETRANGE', KEY, 0, head)
  end
end

local function remove(found)
  leave(found)
  redis.call('ZREM', DUE, identity)
  redis.call('DEL', KEY, MORE)
end

-- The answer of a write that was done: 1 and what is left. One that was not answers lost().
local function applied()
  local left = look()
  return {1, now, NUMBERS[left.state], left.leased_until or false, left.expires_at or false}
end

local function gone()
  return {1, now, false, false, false}
end

-- Put an act on record, before it is done: a script that fails half way is not undone. ``after``: the
-- state it leads to; none when the record goes.
local function audit(found, verb, after, by, why)
  redis.call('XADD', KEYS[6], '*', 'at', digits(now), 'verb', verb, 'by', by, 'reason', why,
    'identity', identity, 'before', found.state, 'after', after or '')
end

-- What is kept, and for how long.
local function completed(snapshot, retention, tombstone, reason)
  local expires_at = now + tonumber(retention)
  return {
    state = 'completed', snapshot = snapshot, request = false,
    expires_at = expires_at, forget_at = expires_at + tonumber(tombstone), reason = reason,
  }
end

local function released(retention, reason)
  return {
    state = 'failed_retryable', snapshot = false, reason = reason,
    forget_at = now + tonumber(retention),
  }
end

-- Due no later than its deadline, where the abandoner looks.
local function queued(found, due, reason)
  return {
    state = 'pending', leased_until = found.abandon_at, snapshot = false, reason = reason,
  }, math.min(due, found.abandon_at)
end
