-- Results of tests. They are no part of any batch: written by the lease that reports them, and shown
-- only while that lease is the latest of its attempt.
CREATE TABLE results (
    -- In the order of arrival; what lists and histories page by.
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    -- Tells a result from the others of its lease: a repeat has the same.
    result_key bytea NOT NULL CHECK (length(result_key) = 16),
    -- 0 fail, 1 error, 2 skip, 3 pass: what went wrong comes first.
    status bigint NOT NULL CHECK (status BETWEEN 0 AND 3),
    test_id text COLLATE "C" NOT NULL,
    suite text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    duration_ms bigint,
    message text,
    trace text,
    -- A JSON object of texts, if there is any.
    metadata text,
    -- Bytes of the texts above, for the bound of a lease.
    size bigint NOT NULL,
    at bigint NOT NULL
);
CREATE UNIQUE INDEX results_key ON results (run_id, job, n, lease_epoch, result_key);
-- Pages of a job, and counts without its texts.
CREATE INDEX results_page ON results (run_id, job, n, lease_epoch, status, id, size);
-- One test over time.
CREATE INDEX results_name ON results (name, id);

-- What a lease said its results came to, and how many were not taken.
CREATE TABLE result_claims (
    project text COLLATE "C" NOT NULL,
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    n bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    -- Absent where nothing was said.
    failed bigint,
    errors bigint,
    skipped bigint,
    passed bigint,
    dropped bigint NOT NULL,
    PRIMARY KEY (run_id, job, n, lease_epoch)
);
