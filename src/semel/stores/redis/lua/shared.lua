-- Read, after record.lua, before every script that changes one record in any way there is.
-- keys: the record, then its bucket's indexes: lease, resume, run, ask, expire, forget, deadline,
--       made; of scripts that put an act on record, then the bucket's audit. All lie in one slot, for
--       the bucket is their hash tag.
-- arguments: the identity first; what is optional comes last and is left out, a number that is
--       left out is empty.
-- why: everything is checked before the first write: a script that fails half way is not undone.
local DEADLINE, MADE = KEYS[8], KEYS[9]
local INDEX = {
  lease = KEYS[2], resume = KEYS[3], run = KEYS[4], ask = KEYS[5], expire = KEYS[6], forget = KEYS[7],
}
local PUT_OFF = 3600000000

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

-- What decisions are made on; nil when there is no record.
local function look()
  local row = redis.call('HMGET', KEY, 'state', 'fence', 'on_lapse', 'duty', 'leased_until',
    'expires_at', 'forget_at', 'patience', 'abandon_at', 'tries', 'resource', 'tenant')
  if not row[1] then return nil end
  return {
    state = row[1], fence = row[2], on_lapse = row[3], duty = row[4],
    leased_until = number(row[5]), expires_at = number(row[6]), forget_at = number(row[7]),
    patience = number(row[8]), abandon_at = number(row[9]), tries = number(row[10]) or 0,
    resource = row[11], tenant = row[12],
  }
end

local function lapsed(found)
  return found.state == 'in_progress' and found.leased_until and found.leased_until <= now
end

local function leased(on_lapse)
  return on_lapse == 'resume' and 'resume' or 'lease'
end

-- By what it made, for whom: neither text can hold NUL. The digest first, to be found by its range.
local function made(tenant, resource)
  return redis.sha1hex(tenant .. '\0' .. resource) .. identity
end

-- In one index always: whose duty it is, from when on; nobody's, it is at the end.
local function place(old, duty, due)
  if old and old ~= duty then redis.call('ZREM', INDEX[old], identity) end
  redis.call('ZADD', INDEX[duty], due and digits(due) or '+inf', identity)
end

local function leave(found)
  if found.state == 'pending' then redis.call('ZREM', DEADLINE, identity) end
  if found.state == 'completed' and found.resource then
    redis.call('ZREM', MADE, made(found.tenant, found.resource))
  end
end

-- Write some fields; false takes one away. With a duty the record changes its place.
local function change(found, fields, duty, due)
  if duty then
    place(found.duty, duty, due)
    fields.duty, fields.due_at = duty, due or false
  end
  if fields.state and fields.state ~= found.state then leave(found) end
  if fields.state == 'pending' then
    redis.call('ZADD', DEADLINE, digits(fields.leased_until), identity)
  end
  local set, gone = {}, {}
  for name, value in pairs(fields) do
    if value == false then
      gone[#gone + 1] = name
    else
      set[#set + 1] = name
      set[#set + 1] = digits(value)
    end
  end
  redis.call('HSET', KEY, unpack(set))
  if #gone > 0 then redis.call('HDEL', KEY, unpack(gone)) end
end

local function remove(found)
  leave(found)
  redis.call('ZREM', INDEX[found.duty], identity)
  redis.call('DEL', KEY)
end

-- The answer of a write that was done: 1 and what is left. One that was not answers lost().
local function applied()
  local left = redis.call('HMGET', KEY, 'state', 'leased_until', 'expires_at')
  return {1, now, left[1], left[2], left[3]}
end

local function gone()
  return {1, now, false, false, false}
end

-- Put an act on record, before it is done: a script that fails half way is not undone. ``after``: the
-- state it leads to; none when the record goes.
local function audit(found, verb, after, by, why)
  redis.call('XADD', KEYS[10], '*', 'at', digits(now), 'verb', verb, 'by', by, 'reason', why,
    'identity', identity, 'before', found.state, 'after', after or '')
end

-- What is kept, and for how long.
local function completed(snapshot, retention, tombstone, reason)
  local expires_at = now + tonumber(retention)
  return {
    state = 'completed', snapshot = snapshot, request = false, leased_until = false,
    expires_at = expires_at, forget_at = expires_at + tonumber(tombstone), reason = reason,
  }
end

local function released(retention, reason)
  return {
    state = 'failed_retryable', leased_until = false, snapshot = false, reason = reason,
    forget_at = now + tonumber(retention),
  }
end

-- Due no later than its deadline, where the abandoner looks.
local function queued(found, due, reason)
  return {
    state = 'pending', leased_until = found.abandon_at, snapshot = false, reason = reason,
  }, math.min(due, found.abandon_at)
end
