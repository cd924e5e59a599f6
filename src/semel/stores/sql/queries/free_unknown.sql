-- free_unknown: an operator gives up on an unknown record and frees the key on purpose.
-- event: evict, forced and freed on purpose
-- audits: free -
-- takes: identity seen
-- gives: NULL (no state), NULL, NULL, now; no row when refused or already gone
-- why: the one way an unsettled key becomes free; a person said so, with a reason that is audited.
DELETE FROM semel_record
WHERE identity = :identity AND fence = :seen AND state = {unknown}
RETURNING CAST(NULL AS smallint), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), {now}
