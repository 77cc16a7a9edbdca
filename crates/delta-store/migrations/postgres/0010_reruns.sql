-- A run that was run again, and the runs that did: found from either end.
ALTER TABLE runs ADD COLUMN rerun_of text COLLATE "C";
CREATE INDEX runs_rerun_of ON runs (rerun_of) WHERE rerun_of IS NOT NULL;
-- The job of an earlier run whose result a job of a rerun has.
ALTER TABLE jobs ADD COLUMN kept text COLLATE "C";
