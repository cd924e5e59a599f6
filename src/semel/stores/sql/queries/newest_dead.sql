-- newest_dead: records whose outcome nobody will ask about again.
-- takes: identity limit
-- gives: glimpses and now, by identity, the last first
-- why: they have no time to stand by. PostgreSQL and SQLite have an index of their identities, and
--      MySQL's index of what is due ends with the identity: nothing is sorted.
SELECT {glimpse}, {now}
FROM semel_record AS record {by_due}
LEFT JOIN semel_terms AS terms ON terms.id = record.terms
WHERE record.duty = {duty.ask} AND record.due_at IS NULL AND record.identity < :identity
ORDER BY record.identity DESC LIMIT :limit
