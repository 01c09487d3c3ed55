-- The ledger's tables. Once released: never edited, only followed.
CREATE TABLE organization (
    org text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    entity_revision bigint NOT NULL,
    monthly_budget_nanousd bigint,
    cap_revision bigint NOT NULL,
    cap_mode text NOT NULL,
    unpriced_policy text NOT NULL,
    on_unreachable text NOT NULL,
    billing_timezone text NOT NULL,
    billing_zones jsonb NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_organization PRIMARY KEY (org)
);

CREATE TABLE agent (
    org text NOT NULL,
    agent_id text NOT NULL,
    version integer,
    name text,
    monthly_nanousd bigint,
    cap_revision bigint,
    published_revision bigint NOT NULL DEFAULT 0,
    archived_revision bigint NOT NULL DEFAULT 0,
    CONSTRAINT pk_agent PRIMARY KEY (org, agent_id)
);

CREATE TABLE channel (
    org text NOT NULL,
    channel_id text NOT NULL,
    name text NOT NULL,
    rights text[] NOT NULL,
    revoked boolean NOT NULL,
    entity_revision bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_channel PRIMARY KEY (org, channel_id)
);

CREATE TABLE run (
    org text NOT NULL,
    run_id text NOT NULL,
    channel_id text NOT NULL,
    root_run_id text NOT NULL,
    said_root_run_id text NOT NULL,
    provisional boolean NOT NULL,
    parent_run_id text,
    delegation_id text,
    agent_id text,
    agent_version text,
    user_id text,
    started_by_user_id text,
    surface text,
    budget_nanousd bigint,
    conversation_id text,
    environment_id text,
    exposure_id text,
    routine_id text,
    goal_id text,
    system_role text,
    model text,
    provider text,
    key_id text,
    asked_in_chat jsonb,
    status text NOT NULL,
    error text,
    tools text[] NOT NULL,
    missing_delegates integer NOT NULL,
    started_at timestamptz,
    first_sign_at timestamptz,
    last_sign_at timestamptz,
    ended_at timestamptz,
    start_digest text,
    end_digest text,
    revision bigint NOT NULL,
    counted_agents text[] NOT NULL,
    shown_start timestamptz GENERATED ALWAYS AS (coalesce(started_at, first_sign_at)) STORED,
    own_cost_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    own_request_count numeric(38, 0) NOT NULL DEFAULT 0,
    own_unpriced_count numeric(38, 0) NOT NULL DEFAULT 0,
    own_missing_delegate_count numeric(38, 0) NOT NULL DEFAULT 0,
    own_input numeric(38, 0) NOT NULL DEFAULT 0,
    own_output numeric(38, 0) NOT NULL DEFAULT 0,
    own_cache_read numeric(38, 0) NOT NULL DEFAULT 0,
    own_cache_write_5m numeric(38, 0) NOT NULL DEFAULT 0,
    own_cache_write_1h numeric(38, 0) NOT NULL DEFAULT 0,
    own_reasoning numeric(38, 0) NOT NULL DEFAULT 0,
    own_audio_input numeric(38, 0) NOT NULL DEFAULT 0,
    own_audio_output numeric(38, 0) NOT NULL DEFAULT 0,
    tree_cost_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    tree_request_count numeric(38, 0) NOT NULL DEFAULT 0,
    tree_unpriced_count numeric(38, 0) NOT NULL DEFAULT 0,
    tree_missing_delegate_count numeric(38, 0) NOT NULL DEFAULT 0,
    tree_input numeric(38, 0) NOT NULL DEFAULT 0,
    tree_output numeric(38, 0) NOT NULL DEFAULT 0,
    tree_cache_read numeric(38, 0) NOT NULL DEFAULT 0,
    tree_cache_write_5m numeric(38, 0) NOT NULL DEFAULT 0,
    tree_cache_write_1h numeric(38, 0) NOT NULL DEFAULT 0,
    tree_reasoning numeric(38, 0) NOT NULL DEFAULT 0,
    tree_audio_input numeric(38, 0) NOT NULL DEFAULT 0,
    tree_audio_output numeric(38, 0) NOT NULL DEFAULT 0,
    CONSTRAINT pk_run PRIMARY KEY (org, run_id)
) WITH (fillfactor = 70);
CREATE INDEX ix_run_top_level ON run (org, shown_start DESC, run_id) WHERE run_id = root_run_id;
CREATE INDEX ix_run_start ON run (org, shown_start DESC, run_id);
CREATE INDEX ix_run_root ON run (org, root_run_id);
CREATE INDEX ix_run_parent ON run (org, parent_run_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE request (
    org text NOT NULL,
    request_id text NOT NULL,
    claims jsonb NOT NULL,
    CONSTRAINT pk_request PRIMARY KEY (org, request_id)
);

CREATE TABLE entry (
    id uuid NOT NULL,
    sequence bigint GENERATED ALWAYS AS IDENTITY,
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    org text NOT NULL,
    request_id text NOT NULL,
    run_id text NOT NULL,
    billed_run_id text NOT NULL,
    delegation_id text,
    turn_id text,
    kind text NOT NULL,
    model text NOT NULL,
    provider text,
    key_id text,
    input bigint NOT NULL,
    output bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write_5m bigint NOT NULL,
    cache_write_1h bigint NOT NULL,
    reasoning bigint NOT NULL,
    audio_input bigint NOT NULL,
    audio_output bigint NOT NULL,
    reported_tokens bigint[] NOT NULL,
    cost_nanousd bigint NOT NULL,
    request_count smallint NOT NULL,
    unpriced_count smallint NOT NULL,
    priced boolean NOT NULL,
    reason text,
    price_source text NOT NULL,
    price_set text NOT NULL,
    provider_amount text,
    provider_currency text,
    interrupted boolean NOT NULL,
    month text NOT NULL,
    occurred_at timestamptz NOT NULL,
    billed_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT pk_entry PRIMARY KEY (id)
);
CREATE UNIQUE INDEX ix_entry_sequence ON entry (sequence);
CREATE INDEX ix_entry_run ON entry (org, billed_run_id, sequence);

CREATE TABLE run_line (
    org text NOT NULL,
    run_id text NOT NULL,
    month text NOT NULL,
    provider text NOT NULL,
    model text NOT NULL,
    key_id text NOT NULL,
    kind text NOT NULL,
    late_month text NOT NULL,
    cost_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    request_count numeric(38, 0) NOT NULL DEFAULT 0,
    unpriced_count numeric(38, 0) NOT NULL DEFAULT 0,
    missing_delegate_count numeric(38, 0) NOT NULL DEFAULT 0,
    input numeric(38, 0) NOT NULL DEFAULT 0,
    output numeric(38, 0) NOT NULL DEFAULT 0,
    cache_read numeric(38, 0) NOT NULL DEFAULT 0,
    cache_write_5m numeric(38, 0) NOT NULL DEFAULT 0,
    cache_write_1h numeric(38, 0) NOT NULL DEFAULT 0,
    reasoning numeric(38, 0) NOT NULL DEFAULT 0,
    audio_input numeric(38, 0) NOT NULL DEFAULT 0,
    audio_output numeric(38, 0) NOT NULL DEFAULT 0,
    CONSTRAINT pk_run_line PRIMARY KEY (org, run_id, month, provider, model, key_id, kind, late_month)
) WITH (fillfactor = 70);

CREATE TABLE month_spend (
    org text NOT NULL,
    scope text NOT NULL,
    scope_id text NOT NULL,
    month text NOT NULL,
    cost_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    unpriced_count numeric(38, 0) NOT NULL DEFAULT 0,
    late_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    CONSTRAINT pk_month_spend PRIMARY KEY (org, scope, scope_id, month)
);

CREATE TABLE admission (
    org text NOT NULL,
    request_id text NOT NULL,
    run_id text,
    channel_id text,
    model text NOT NULL,
    allowed boolean NOT NULL,
    answer jsonb NOT NULL,
    digest bytea NOT NULL,
    month text NOT NULL,
    decided_at timestamptz NOT NULL,
    CONSTRAINT pk_admission PRIMARY KEY (org, request_id)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON inbox, outbox, retry TO ledger;
GRANT SELECT, INSERT, UPDATE ON dead_letter, audit_head TO ledger;
GRANT SELECT, INSERT ON audit_entry, entry, admission TO ledger;
GRANT SELECT, INSERT, UPDATE ON organization, agent, channel, run, request, run_line, month_spend TO ledger;
GRANT SELECT ON schema_version TO ledger;
