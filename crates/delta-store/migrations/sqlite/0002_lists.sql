-- What people list by, beside repository and commit. A run that succeeds pays for one of them at
-- most, and once: a ref never changes, and an outcome is written when the run ends.

-- Runs with a ref only: those made through the API often have none.
CREATE INDEX runs_ref ON runs (git_ref, run_id) WHERE git_ref IS NOT NULL;
-- What went wrong is rare and asked for often. Success is found by walking back from the newest
-- run, and so is REPORTED; live states have runs_live.
CREATE INDEX runs_unhappy ON runs (outcome, run_id) WHERE outcome <> 'SUCCESS';
