-- finished: calls with their answers, latest first.
-- takes: limit
-- gives: rows
-- why: an answer may have come just before its process ended.
SELECT * FROM call WHERE finished_at IS NOT NULL ORDER BY finished_at DESC, id DESC LIMIT :limit
