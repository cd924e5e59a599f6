-- wrk's side of bench/plans.py: -- PLAN PREFIX KEYS HERD FRESH_EVERY BODY_FILE
-- Prints one JSON document, like bench/generators/pulse.py.

local plan, prefix, keys, herd, fresh_every
local head, tail
local number = -1
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  plan, prefix = args[1], args[2]
  keys, herd, fresh_every = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local file = io.open(args[6], "rb")
  local body = file:read("*a")
  file:close()
  head = "POST /payments HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    .. "Content-Length: " .. #body .. "\r\nIdempotency-Key: " .. prefix
  tail = "\r\n\r\n" .. body
  -- Looking at answers costs wrk time; only a herd has answers other than success.
  if plan == "herd" then
    conflicts = 0
    response = count_conflicts
  end
end

function count_conflicts(status)
  if status == 409 or status == 423 then
    conflicts = conflicts + 1
  end
end

local function key(n)
  if plan == "herd" then
    return string.format("h%012d", math.floor(n / herd))
  end
  if plan == "fresh" or (plan == "mixed" and n % fresh_every == 0) then
    return string.format("f%012d", n)
  end
  return string.format("r%012d", n % keys)
end

function request()
  number = number + 1
  return head .. key(number) .. tail
end

function done(summary, latency)
  local errors = summary.errors
  local conflicts = 0
  for _, thread in ipairs(threads) do
    conflicts = conflicts + (thread:get("conflicts") or 0)
  end
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "p50": %.4f, "p99": %.4f, "refused": %d, '
      .. '"conflicts": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, errors.status, conflicts,
    errors.connect + errors.read + errors.write + errors.timeout))
end
