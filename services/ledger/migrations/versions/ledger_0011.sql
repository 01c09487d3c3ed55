-- A run's own signs of life, apart from those of its tree; and runs that questions entered into trees
-- of others, to be put where they belong. Released: never edited, only followed.
ALTER TABLE run
    ADD COLUMN own_first_sign_at timestamptz,
    ADD COLUMN own_last_sign_at timestamptz,
    ADD COLUMN own_heard_at timestamptz;
-- What a root was seen with so far was not kept apart: it stays its own.
UPDATE run SET heard_at = coalesce(heard_at, last_sign_at), own_first_sign_at = first_sign_at,
    own_last_sign_at = last_sign_at, own_heard_at = coalesce(heard_at, last_sign_at)
    WHERE first_sign_at IS NOT NULL;

CREATE TABLE unplaced_run (
    id bigint GENERATED ALWAYS AS IDENTITY,
    org text NOT NULL,
    run_id text NOT NULL,
    CONSTRAINT pk_unplaced_run PRIMARY KEY (id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON unplaced_run TO ledger;
