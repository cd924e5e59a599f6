-- complete_many: store many answers in one statement.
-- event: complete
-- rows: identity fence snapshot expires_at forget_at resource
-- gives: nothing; the count of changed rows tells whether all of them were applied
-- why: as claim_many. When the count falls short, each completion is asked again by itself.
UPDATE semel_record
SET state = {completed}, snapshot = given.column3, leased_until = NULL,
    duty = {duty.expire}, due_at = given.column4, forget_at = given.column5, reason = NULL,
    resource = given.column6, request = NULL
FROM (VALUES {rows}) AS given
WHERE semel_record.identity = given.column1 AND semel_record.fence = given.column2
  AND semel_record.state IN ({in_progress}, {unknown})
