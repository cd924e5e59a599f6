-- schema: the journal of a client's calls.
-- why: a row is a call. Until it is finished it holds the request, after that its answer; both are
--      sealed, since SQLite does not notice a byte that changed inside of a value. The index by key
--      also lets integrity_check notice a row that is gone.
CREATE TABLE call (
    id INTEGER PRIMARY KEY,
    method TEXT NOT NULL,
    url TEXT NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    fingerprint TEXT NOT NULL,
    terms TEXT NOT NULL,
    omitted TEXT NOT NULL,
    headers TEXT,
    body BLOB,
    status_url TEXT,
    held_by TEXT NOT NULL,
    held_until REAL NOT NULL,
    finished_at REAL,
    answer_status INTEGER,
    answer_size INTEGER,
    answer_body BLOB,
    seal BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX call_by_key ON call (method, url, key);
CREATE INDEX call_by_end ON call (finished_at);
