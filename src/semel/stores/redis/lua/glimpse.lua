#!lua flags=allow-oom
-- glimpse: what a list shows of one record.
-- takes: identity
-- gives: now, the fields, the size of the answer; state is nil when there is no record
-- why: requests and answers, which may be large, stay where they are.
local row = redis.call('HMGET', KEY, 'state', 'on_lapse', 'tenant', 'method', 'path', 'key',
  'created_at', 'leased_until', 'expires_at', 'forget_at', 'due_at', 'tries', 'reason',
  'terms')
local size = redis.call('HEXISTS', KEY, 'snapshot') == 1 and redis.call('HSTRLEN', KEY, 'snapshot')
return {now, row, size}
