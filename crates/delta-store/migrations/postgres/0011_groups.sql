-- Where a run or a job stands in the line of its concurrency group.
ALTER TABLE runs ADD COLUMN place text;
ALTER TABLE jobs ADD COLUMN place text;
-- The members of each group until they are over; job 0 is the run itself.
CREATE TABLE lines (
    project text COLLATE "C" NOT NULL,
    key bytea NOT NULL CHECK (length(key) = 32),
    run_id uuid NOT NULL,
    job bigint NOT NULL,
    taken boolean NOT NULL,
    cancel_older boolean NOT NULL,
    PRIMARY KEY (key, run_id, job)
);
