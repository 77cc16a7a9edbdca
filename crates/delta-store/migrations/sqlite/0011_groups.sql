-- Where a run or a job stands in the line of its concurrency group.
ALTER TABLE runs ADD COLUMN place TEXT;
ALTER TABLE jobs ADD COLUMN place TEXT;
-- Those that are in one: read when the store is opened.
CREATE INDEX jobs_in_line ON jobs (run_id, job) WHERE place IS NOT NULL AND resolution IS NULL;
