-- The life of a run: parks, resumes, verdicts on silence, what is to be said. Released: never edited,
-- only followed.
ALTER TABLE run ADD COLUMN moved_to text;
ALTER TABLE run ADD COLUMN moved_digest text;
ALTER TABLE run ADD COLUMN moved_at timestamptz;
ALTER TABLE run ADD COLUMN heard_at timestamptz;
ALTER TABLE run ADD COLUMN reaped_at timestamptz;
ALTER TABLE run ADD COLUMN reaped_sign_at timestamptz;
ALTER TABLE run ADD COLUMN said_at timestamptz;
ALTER TABLE run ADD COLUMN say_due_at timestamptz;
UPDATE run SET heard_at = last_sign_at WHERE status = 'running';
CREATE INDEX ix_run_running ON run (org, run_id) WHERE status = 'running' AND run_id = root_run_id;
CREATE INDEX ix_run_say_due ON run (say_due_at) WHERE say_due_at IS NOT NULL;

CREATE TABLE run_transition (
    org text NOT NULL,
    run_id text NOT NULL,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    digest text NOT NULL,
    sign_at timestamptz,
    watermark_at timestamptz,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT pk_run_transition PRIMARY KEY (org, run_id, kind, at, digest)
);

CREATE TABLE watermark (
    stream text NOT NULL,
    handled_until timestamptz NOT NULL,
    read_at timestamptz NOT NULL,
    CONSTRAINT pk_watermark PRIMARY KEY (stream)
);

GRANT SELECT, INSERT ON run_transition TO ledger;
GRANT SELECT, INSERT, UPDATE ON watermark TO ledger;
