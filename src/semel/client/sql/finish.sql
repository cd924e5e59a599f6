-- finish: keep the answer, delete the request.
-- takes: id terms finished_at answer_status answer_size answer_body seal
-- gives: nothing
-- why: any process that has the answer may write it, whoever holds the call: it is the same answer.
UPDATE call
SET terms = :terms, finished_at = :finished_at, answer_status = :answer_status,
    answer_size = :answer_size, answer_body = :answer_body, seal = :seal, headers = NULL, body = NULL, status_url = NULL,
    held_by = '', held_until = 0
WHERE id = :id
