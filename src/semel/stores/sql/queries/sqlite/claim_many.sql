-- claim_many: insert in_progress records for many claims in one statement.
-- event: claim
-- rows: identity fence fingerprint fields tenant method path key on_lapse created_at leased_until
--       duty request terms
-- gives: nothing; the count of inserted rows tells whether all of them were new
-- why: Python gives up its interpreter lock at every statement and every returned row, and may wait
--      5 ms to get it back from a busy event loop. One statement per batch, without rows, is free
--      of that. When the count falls short, each claim is asked again by itself.
INSERT INTO semel_record
    (identity, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
     created_at, leased_until, duty, request, terms, state, due_at)
SELECT column1, column2, column3, column4, column5, column6, column7, column8, column9,
       column10, column11, column12, column13, column14, {in_progress}, column11
FROM (VALUES {rows})
WHERE TRUE
ON CONFLICT (identity) DO NOTHING
