-- purge: delete calls that were finished long ago.
-- takes: before limit
-- gives: nothing
-- why: a bounded number at a time, so that no call waits for it. What is pending is never purged.
DELETE FROM call WHERE id IN (
    SELECT id FROM call WHERE finished_at < :before ORDER BY finished_at LIMIT :limit
)
