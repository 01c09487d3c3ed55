-- Money that is no model request of a run. Released: never edited, only followed.
ALTER TABLE entry
    ALTER COLUMN run_id DROP NOT NULL,
    ALTER COLUMN billed_run_id DROP NOT NULL,
    ADD COLUMN ingestion_id text,
    ADD COLUMN document_id text,
    ADD COLUMN collection_id text,
    ADD COLUMN provider_rate text,
    ADD COLUMN late_month text NOT NULL DEFAULT '',
    ADD COLUMN corrects_entry_id uuid,
    ADD CONSTRAINT ck_entry_bearer CHECK ((billed_run_id IS NULL) = (ingestion_id IS NOT NULL));
CREATE INDEX ix_entry_ingested ON entry (org, occurred_at) WHERE ingestion_id IS NOT NULL;
CREATE INDEX ix_entry_ingestion ON entry (org, ingestion_id, sequence)
    WHERE ingestion_id IS NOT NULL;
CREATE INDEX ix_entry_corrects ON entry (org, corrects_entry_id)
    WHERE corrects_entry_id IS NOT NULL;

CREATE TABLE correction (
    org text NOT NULL,
    correction_id text NOT NULL,
    id uuid NOT NULL,
    entry_id uuid NOT NULL,
    before_nanousd numeric(38, 0) NOT NULL,
    cost_nanousd bigint NOT NULL,
    reason text NOT NULL,
    reason_salt bytea NOT NULL,
    actor text NOT NULL,
    month text NOT NULL,
    corrected_at timestamptz NOT NULL,
    CONSTRAINT pk_correction PRIMARY KEY (org, correction_id)
);
CREATE UNIQUE INDEX ix_correction_id ON correction (id);

GRANT SELECT, INSERT ON correction TO ledger;
