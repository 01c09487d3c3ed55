-- The project that a run belongs to. Released: never edited, only followed.
ALTER TABLE run ADD COLUMN project_id text;
CREATE INDEX ix_run_project ON run (org, project_id, shown_start DESC) WHERE project_id IS NOT NULL;
