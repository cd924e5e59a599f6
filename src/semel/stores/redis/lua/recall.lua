#!lua flags=allow-oom
-- recall: look at one record with all that is kept of it.
-- takes: identity
-- gives: now, the record, and what only those need who look after it; state is nil when there is none
-- why: requests and journals are not read on the way of a request, which has no use for them.
return {now, redis.call('HMGET', KEY, unpack(RECORD)), redis.call('HMGET', KEY, 'tenant', 'method',
  'path', 'key', 'request', 'journal', 'resource', 'tries', 'due_at', 'terms')}
