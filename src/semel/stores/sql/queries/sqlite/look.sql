-- look: read, for the connections that only look.
-- takes: identity
-- gives: the record; no row when there is none
-- why: SQLite's clock is the store's own, so unlike read it needs no row to carry it.
SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       {expires_at}, {forget_at}, {answer}, reason, retired_at
FROM semel_record WHERE identity = :identity
