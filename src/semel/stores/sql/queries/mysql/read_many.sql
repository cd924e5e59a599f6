-- read_many: read, for many identities at once.
-- takes: identity
-- gives: the records that are there and now, in any order
-- why: as claim_many. What it does not give is read alone.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       {expires_at}, {forget_at}, {answer}, reason, retired_at, {now}
FROM semel_record
WHERE identity IN (:identity)
