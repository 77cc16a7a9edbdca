-- Results of tests. They are no part of any batch: written by the lease that reports them, and shown
-- only while that lease is the latest of its attempt.
CREATE TABLE results (
    -- In the order of arrival; what lists and histories page by.
    id          INTEGER PRIMARY KEY,
    run_id      BLOB NOT NULL CHECK (length(run_id) = 16),
    job         INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    lease_epoch INTEGER NOT NULL,
    project     TEXT NOT NULL,
    -- Tells a result from the others of its lease: a repeat has the same.
    result_key  BLOB NOT NULL CHECK (length(result_key) = 16),
    -- 0 fail, 1 error, 2 skip, 3 pass: what went wrong comes first.
    status      INTEGER NOT NULL CHECK (status >= 0 AND status <= 3),
    test_id     TEXT NOT NULL,
    suite       TEXT NOT NULL,
    name        TEXT NOT NULL,
    duration_ms INTEGER,
    message     TEXT,
    trace       TEXT,
    -- A JSON object of texts, if there is any.
    metadata    TEXT,
    -- Bytes of the texts above, for the bound of a lease.
    size        INTEGER NOT NULL,
    at          INTEGER NOT NULL
);

CREATE UNIQUE INDEX results_key ON results (run_id, job, attempt, lease_epoch, result_key);
-- Pages of a job, and counts without its texts.
CREATE INDEX results_page ON results (run_id, job, attempt, lease_epoch, status, id, size);
-- One test over time.
CREATE INDEX results_name ON results (name, id);

-- What a lease said its results came to, and how many were not taken.
CREATE TABLE result_claims (
    run_id      BLOB NOT NULL,
    job         INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    lease_epoch INTEGER NOT NULL,
    project     TEXT NOT NULL,
    -- Absent where nothing was said.
    failed      INTEGER,
    errors      INTEGER,
    skipped     INTEGER,
    passed      INTEGER,
    dropped     INTEGER NOT NULL,
    PRIMARY KEY (run_id, job, attempt, lease_epoch)
) WITHOUT ROWID;
