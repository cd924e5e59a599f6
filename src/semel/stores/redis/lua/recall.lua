#!lua flags=allow-oom
-- recall: look at one record with all that is kept of it.
-- takes: identity
-- gives: now, the record, and what only those need who look after it; empty when there is none
-- why: requests and journals are not read on the way of a request, which has no use for them.
local record = redis.call('GET', KEY) or ''
return {now, record, redis.call('HMGET', MORE, 'request', 'journal', 'resource', 'tries')}
