-- read_many: read, for many identities at once.
-- takes: identity
-- gives: the records that are there and now, in any order; none with an answer above 64 KiB
-- why: as claim_many. What it does not give is read alone, be it large or not there.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       expires_at, forget_at, snapshot, reason, retired_at, {now}
FROM semel_record
WHERE identity IN (:identity) AND (snapshot IS NULL OR LENGTH(snapshot) <= 65536)
