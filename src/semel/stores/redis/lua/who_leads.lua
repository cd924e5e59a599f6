#!lua flags=allow-oom
-- who_leads: until when somebody leads.
-- alone: its one key is the office
-- takes: nothing
-- gives: until when, nil when nobody ever led, and now
-- why: not declared free of writes, so that a replica refuses it.
local clock = redis.call('TIME')
return {redis.call('HGET', KEYS[1], 'leased_until'), clock[1] * 1000000 + clock[2]}
