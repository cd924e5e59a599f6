-- Written by `python -m tools.queries` from queries/mysql/claim.sql: change that file.
-- claim: insert an in_progress record unless the key is too old to start one, or read what is there.
-- event: claim
-- takes: identity fence fingerprint fields tenant method path key on_lapse lease fresh_until
--        request terms
-- gives: the new or the existing record and now; no row when a rival inserted it in between, or when
--        nothing is there and the key is too old
-- why: one round trip, and nothing is written or locked when the record exists: the insert
--      is made only if a look, which takes no lock, found nothing. Not INSERT IGNORE, which would
--      also ignore what is wrong with the row; and not a look within SET or INSERT, which locks.
--      A bare '' has the collation of the session, which may be a caller's, and the parameter that
--      of the server: those two cannot be compared.
SELECT MAX(1) INTO @semel_found FROM semel_record WHERE identity = :identity;

INSERT INTO semel_record
    (identity, state, fence, fingerprint, fields, tenant, method, path, `key`, on_lapse,
     created_at, leased_until, duty, due_at, request, terms)
SELECT :identity, 2 /* in_progress */, :fence, :fingerprint, :fields, :tenant, NULLIF(:method,
       _utf8mb4 x''),
       NULLIF(:path, _utf8mb4 x''), :key, :on_lapse,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease,
       CASE :on_lapse WHEN 3 /* resume */ THEN 2 /* resume */ ELSE 1 /* lease */ END,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :lease, :request, :terms
FROM DUAL
WHERE @semel_found IS NULL AND (:fresh_until IS NULL
                                OR :fresh_until >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));

SELECT identity, state, fence, fingerprint, fields, on_lapse, created_at, leased_until,
       CASE WHEN state = 3 /* completed */ THEN due_at END,
       CASE WHEN state IN (4 /* failed_retryable */, 6 /* expired */) THEN due_at ELSE forget_at END,
       CASE WHEN LENGTH(snapshot) > 32768 THEN CONCAT(x'00', substr(snapshot, 1, 64))
            ELSE snapshot END, reason, retired_at,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM semel_record WHERE identity = :identity
