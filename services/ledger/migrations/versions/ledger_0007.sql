-- Strict mode: what is held for requests under way. Released: never edited, only followed.
CREATE TABLE hold (
    org text NOT NULL,
    request_id text NOT NULL,
    run_id text,
    channel_id text,
    model text NOT NULL,
    amount_nanousd bigint NOT NULL,
    output_tokens_max bigint,
    scopes text[] NOT NULL,
    scope_ids text[] NOT NULL,
    month text NOT NULL,
    state text NOT NULL,
    held_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    closed_at timestamptz,
    actual_nanousd bigint,
    CONSTRAINT pk_hold PRIMARY KEY (org, request_id)
) WITH (fillfactor = 70);
CREATE INDEX ix_hold_held ON hold (org, held_at DESC, request_id);
CREATE INDEX ix_hold_open ON hold (expires_at) WHERE closed_at IS NULL;

-- The only rows that are locked to decide: one per cap and month; a run's own cap has no month.
CREATE TABLE cap_state (
    org text NOT NULL,
    scope text NOT NULL,
    scope_id text NOT NULL,
    month text NOT NULL,
    held_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    overrun_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    CONSTRAINT pk_cap_state PRIMARY KEY (org, scope, scope_id, month)
) WITH (fillfactor = 50);

-- Holds that were closed and are still in their caps' sums; taken out by whoever holds the cap.
CREATE TABLE settlement (
    id bigint GENERATED ALWAYS AS IDENTITY,
    org text NOT NULL,
    scope text NOT NULL,
    scope_id text NOT NULL,
    month text NOT NULL,
    amount_nanousd bigint NOT NULL,
    CONSTRAINT pk_settlement PRIMARY KEY (id)
);
CREATE INDEX ix_settlement_cap ON settlement (org, scope, scope_id, month);

CREATE TABLE overrun (
    id uuid NOT NULL,
    org text NOT NULL,
    scope text NOT NULL,
    scope_id text NOT NULL,
    name text NOT NULL,
    month text NOT NULL,
    cause text NOT NULL,
    amount_nanousd numeric(38, 0) NOT NULL,
    limit_nanousd bigint NOT NULL,
    spent_nanousd numeric(38, 0) NOT NULL,
    held_nanousd numeric(38, 0) NOT NULL,
    request_id text,
    noted_at timestamptz NOT NULL,
    CONSTRAINT pk_overrun PRIMARY KEY (id)
);
CREATE INDEX ix_overrun_noted ON overrun (org, noted_at DESC, id);

-- Requests that an agent was allowed, by second, for the last minute.
CREATE TABLE request_rate (
    org text NOT NULL,
    agent_id text NOT NULL,
    second bigint NOT NULL,
    counts integer[] NOT NULL,
    CONSTRAINT pk_request_rate PRIMARY KEY (org, agent_id)
) WITH (fillfactor = 50);

ALTER TABLE agent ADD COLUMN requests_per_minute integer;
ALTER TABLE agent ADD COLUMN delegates jsonb NOT NULL DEFAULT '[]';

GRANT SELECT, INSERT, UPDATE ON hold, cap_state, request_rate TO ledger;
GRANT SELECT, INSERT, DELETE ON settlement TO ledger;
GRANT SELECT, INSERT ON overrun TO ledger;
