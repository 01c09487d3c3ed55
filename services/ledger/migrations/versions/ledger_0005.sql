-- Departments' months. Released: never edited, only followed.
ALTER TABLE run ADD COLUMN counted_departments text[] NOT NULL DEFAULT '{}';
CREATE INDEX ix_run_starter ON run (org, started_by_user_id, shown_start, run_id)
    WHERE run_id = root_run_id AND started_by_user_id IS NOT NULL;

ALTER TABLE department ADD COLUMN removed_at timestamptz;
-- When an earlier removal happened was not kept: what ran until today counts.
UPDATE department SET removed_at = now() WHERE removed_revision > 0;

-- Runs whose starter's departments changed after they were counted; worked off in bounded steps.
CREATE TABLE recount (
    id bigint GENERATED ALWAYS AS IDENTITY,
    org text NOT NULL,
    user_id text NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz,
    after_run_id text NOT NULL DEFAULT '',
    CONSTRAINT pk_recount PRIMARY KEY (id)
);
-- Everything that was entered before departments were charged.
INSERT INTO recount (org, user_id, since)
    SELECT org, user_id, min(effective_at) FROM department_member GROUP BY org, user_id;

-- What was said about a cap: once per revision of it, month and threshold.
CREATE TABLE cap_notice (
    org text NOT NULL,
    scope text NOT NULL,
    scope_id text NOT NULL,
    cap_revision bigint NOT NULL,
    month text NOT NULL,
    threshold_percent integer NOT NULL,
    spent_nanousd numeric(38, 0) NOT NULL,
    said_at timestamptz NOT NULL,
    CONSTRAINT pk_cap_notice PRIMARY KEY
        (org, scope, scope_id, cap_revision, month, threshold_percent)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON recount TO ledger;
GRANT SELECT, INSERT ON cap_notice TO ledger;
