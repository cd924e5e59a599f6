#!lua flags=allow-oom
-- read: look at one record, change nothing.
-- takes: identity
-- gives: now, the record; state is nil when there is none
-- why: not declared free of writes, so that a replica refuses it: what is decided here must not rest
--      on what a replica has not heard of yet.
return {now, brief()}
