-- A stage has come between telling a forge and being done.
UPDATE reports SET stage = 5 WHERE stage = 4;
