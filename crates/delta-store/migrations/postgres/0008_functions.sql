-- Functions: runs that came by a queue. No index knows a column that changes while a run goes on.
ALTER TABLE runs ADD COLUMN queue text COLLATE "C";
ALTER TABLE runs ADD COLUMN unique_key bytea CHECK (length(unique_key) = 32);
-- When a run that says how long it is kept may go: written with its end.
ALTER TABLE runs ADD COLUMN keep_until bigint;
-- What is no function is listed by itself: functions are many.
CREATE INDEX runs_plain ON runs (id) WHERE queue IS NULL;
CREATE INDEX runs_queue ON runs (queue, id) WHERE queue IS NOT NULL;
-- Dead letters, and those that were put aside.
CREATE INDEX runs_dead ON runs (id) WHERE queue IS NOT NULL AND outcome IN ('FAILED', 'TIMEOUT');
CREATE INDEX runs_unique ON runs (unique_key, id) WHERE unique_key IS NOT NULL;
CREATE INDEX runs_kept ON runs (keep_until) WHERE keep_until IS NOT NULL;

-- What people set about a queue; one that is not here has nothing set.
CREATE TABLE queues (
    project text COLLATE "C" NOT NULL,
    name text COLLATE "C" PRIMARY KEY,
    paused_at bigint,
    paused_by text,
    runner text COLLATE "C"
);
