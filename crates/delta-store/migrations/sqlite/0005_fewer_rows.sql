-- Fewer rows per job: a job cost an insert and a delete in the queue, and a row for each event.

-- The queue follows from the attempts that are QUEUED; memory has it in order.
DROP TABLE queue;

-- A row holds the records that one commit added to a run, with newlines between them: versions
-- first, first + 1, …, `records` of them. The hash is that of the last. Rows from before hold one.
ALTER TABLE events RENAME COLUMN version TO first;
ALTER TABLE events ADD COLUMN records INTEGER NOT NULL DEFAULT 1 CHECK (records > 0);
