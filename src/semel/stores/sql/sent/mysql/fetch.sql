-- Written by `python -m tools.queries` from queries/fetch.sql: change that file.
-- fetch: the whole answer of a completed record, as its fence has it.
-- takes: identity fence
-- gives: now and the answer, always exactly one row; the answer is NULL when it is not there
-- why: what is read or claimed brings a large answer's head only; most replays find its body in a
--      cache, and no batch is slow or large because of one. now comes first: asyncmy takes a row
--      for the end of all rows when it begins with a value of 16 MiB.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), record.snapshot
FROM (SELECT 1 AS one) AS here
LEFT JOIN semel_record AS record
    ON record.identity = :identity AND record.fence = :fence AND record.state = 3 /* completed */
