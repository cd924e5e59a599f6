#!lua flags=allow-oom
-- read: look at one record, change nothing.
-- short: its one key is the record
-- takes: identity
-- gives: the record, empty when there is none, then now
-- why: not declared free of writes, so that a replica refuses it: what is decided here must not rest
--      on what a replica has not heard of yet.
return {brief(), now}
