-- Runs that their platform deleted; corrections that move with their request. Released: never edited, only followed.
ALTER TABLE run ADD COLUMN deleted_at timestamptz;
ALTER TABLE run ADD COLUMN cut_run_ids text[] NOT NULL DEFAULT '{}';
CREATE INDEX ix_run_deleted ON run (org, run_id) WHERE deleted_at IS NOT NULL;

ALTER TABLE entry ADD COLUMN line_kind text;
