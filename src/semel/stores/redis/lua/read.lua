#!lua flags=allow-oom
-- read: look at one record, change nothing.
-- short: its one key is the record
-- takes: identity
-- gives: the fields of the record, then now; state is nil when there is none
-- why: not declared free of writes, so that a replica refuses it: what is decided here must not rest
--      on what a replica has not heard of yet.
local row = brief()
row[13] = now
return row
