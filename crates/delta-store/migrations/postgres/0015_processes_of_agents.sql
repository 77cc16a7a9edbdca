-- The process that began an agent's newest session, where it is one that shows itself in its
-- requests: what it began goes on while its sessions come and go, and another's is refused.
ALTER TABLE agents ADD COLUMN process text;
