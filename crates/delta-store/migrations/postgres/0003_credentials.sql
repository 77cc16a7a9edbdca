-- What a credential grants, beside its role, and the one-time tokens that new agents are let in
-- with. A token made before granted no zone and left labels to the agent; so it stays.

ALTER TABLE credentials
    DROP CONSTRAINT credentials_role_check,
    ADD CONSTRAINT credentials_role_check
        CHECK (role IN ('runner', 'user', 'admin', 'enrolment')),
    ADD COLUMN pool text COLLATE "C" NOT NULL DEFAULT 'default',
    -- Words with single spaces between them; among labels, * is any.
    ADD COLUMN zones text NOT NULL DEFAULT '',
    ADD COLUMN labels text NOT NULL DEFAULT '*',
    -- The one agent that may use it.
    ADD COLUMN agent text,
    -- When a one-time token was used, for which agent, and when it was last shown again.
    ADD COLUMN used_at bigint,
    ADD COLUMN used_by text,
    ADD COLUMN reused_at bigint;
