#!lua flags=allow-oom
-- recall: look at one record with all that is kept of it.
-- takes: identity
-- gives: now, the record, and what only those need who look after it; state is nil when there is none
-- why: requests and journals are not read on the way of a request, which has no use for them.
local record = redis.call('HMGET', KEY, 'state', 'fence', 'fingerprint', 'fields', 'on_lapse',
  'created_at', 'leased_until', 'expires_at', 'forget_at', 'snapshot', 'reason', 'retired_at')
local rest = redis.call('HMGET', KEY, 'tenant', 'method', 'path', 'key', 'request', 'journal',
  'resource', 'tries', 'due_at', 'terms')
return {now, record, rest}
