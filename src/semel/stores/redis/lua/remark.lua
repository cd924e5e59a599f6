#!lua flags=allow-oom
-- remark: put an act on record that is no single step.
-- alone: its one key is a bucket's audit
-- takes: verb by why subject
-- gives: now
-- why: before its first step and after its last: an act that was begun is never without an entry.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
redis.call('XADD', KEYS[1], '*', 'at', string.format('%.0f', now), 'verb', ARGV[1], 'by', ARGV[2],
  'reason', ARGV[3], 'subject', ARGV[4])
return {now}
