-- Functions: runs that came by a queue.
ALTER TABLE runs ADD COLUMN queue TEXT;
ALTER TABLE runs ADD COLUMN unique_key BLOB;
-- When a run that says how long it is kept may go.
ALTER TABLE runs ADD COLUMN keep_until INTEGER;
-- What is no function is listed by itself: functions are many.
CREATE INDEX runs_plain ON runs (run_id) WHERE queue IS NULL;
CREATE INDEX runs_queue ON runs (queue, run_id) WHERE queue IS NOT NULL;
-- Dead letters, and those that were put aside.
CREATE INDEX runs_dead ON runs (run_id) WHERE queue IS NOT NULL
    AND (outcome = 'FAILED' OR outcome = 'TIMEOUT');
CREATE INDEX runs_unique ON runs (unique_key, run_id) WHERE unique_key IS NOT NULL;
CREATE INDEX runs_kept ON runs (keep_until) WHERE keep_until IS NOT NULL;

-- What people set about a queue; one that is not here has nothing set.
CREATE TABLE queues (
    name      TEXT PRIMARY KEY,
    project   TEXT NOT NULL,
    paused_at INTEGER,
    paused_by TEXT,
    runner    TEXT
) WITHOUT ROWID;
