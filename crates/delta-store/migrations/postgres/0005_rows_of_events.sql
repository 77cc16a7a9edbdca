-- A row holds the records that one commit added to a run, with newlines between them: versions
-- first, first + 1, …, `records` of them. The hash is that of the last; `at` is their latest moment.
-- Rows from before hold one. The key stays the second wall: whoever continues a chain writes the
-- version behind the tip it knows, so two writers that continue the same one meet here. The column
-- has another name, so that a writer of before fails instead of misreading what it finds.
ALTER TABLE events RENAME COLUMN version TO first;
ALTER TABLE events ADD COLUMN records bigint NOT NULL DEFAULT 1 CHECK (records > 0);
