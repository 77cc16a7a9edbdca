-- What people list by, beside repository and commit. A run that succeeds pays for one of them at
-- most. Neither knows a column that changes while a run goes on: a ref never changes, and an
-- outcome is written when the run ends, by an update that is not HOT anyway, since it moves the run
-- in runs_moment. The tables of attempts and jobs get no index.

-- Runs with a ref only: those made through the API often have none.
CREATE INDEX runs_ref ON runs (git_ref, id) WHERE git_ref IS NOT NULL;
-- What went wrong is rare and asked for often. Success is found by walking back from the newest
-- run, and so is REPORTED; live states have runs_moment.
CREATE INDEX runs_unhappy ON runs (outcome, id) WHERE outcome <> 'SUCCESS';
