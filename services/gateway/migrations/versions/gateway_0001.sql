-- The directory. Released: never edited, only followed.
CREATE TABLE organization (
    org_id text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    monthly_budget_nanousd bigint,
    cap_revision bigint NOT NULL,
    cap_mode text NOT NULL,
    unpriced_policy text NOT NULL,
    on_unreachable text NOT NULL,
    billing_timezone text NOT NULL,
    billing_zones jsonb NOT NULL,
    chat_may_waive_approvals boolean NOT NULL,
    entity_revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_organization PRIMARY KEY (org_id)
);

CREATE TABLE agent (
    org_id text NOT NULL,
    agent_id text NOT NULL,
    version integer NOT NULL,
    entity_revision bigint NOT NULL,
    published jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    archived_at timestamptz,
    CONSTRAINT pk_agent PRIMARY KEY (org_id, agent_id),
    CONSTRAINT fk_agent_org_id_organization FOREIGN KEY (org_id) REFERENCES organization (org_id)
);

CREATE TABLE agent_version (
    org_id text NOT NULL,
    agent_id text NOT NULL,
    version integer NOT NULL,
    published jsonb NOT NULL,
    published_at timestamptz NOT NULL,
    published_by text NOT NULL,
    CONSTRAINT pk_agent_version PRIMARY KEY (org_id, agent_id, version),
    CONSTRAINT fk_agent_version_org_id_agent_id_agent
        FOREIGN KEY (org_id, agent_id) REFERENCES agent (org_id, agent_id)
);

CREATE TABLE channel (
    org_id text NOT NULL,
    channel_id text NOT NULL,
    name text NOT NULL,
    rights text[] NOT NULL,
    revoked boolean NOT NULL,
    entity_revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_channel PRIMARY KEY (org_id, channel_id),
    CONSTRAINT fk_channel_org_id_organization FOREIGN KEY (org_id) REFERENCES organization (org_id)
);

CREATE TABLE api_key (
    key_id text NOT NULL,
    secret_sha256 bytea NOT NULL,
    org_id text NOT NULL,
    name text NOT NULL,
    permissions text[] NOT NULL,
    channel_id text,
    created_by text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT pk_api_key PRIMARY KEY (key_id),
    CONSTRAINT fk_api_key_org_id_organization FOREIGN KEY (org_id) REFERENCES organization (org_id),
    CONSTRAINT fk_api_key_org_id_channel_id_channel
        FOREIGN KEY (org_id, channel_id) REFERENCES channel (org_id, channel_id)
);
CREATE INDEX ix_api_key_org_id_created_at ON api_key (org_id, created_at);

CREATE TABLE pseudonym (
    subject text NOT NULL,
    pseudonym text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_pseudonym PRIMARY KEY (subject)
);

CREATE TABLE idempotency (
    subject text NOT NULL,
    org_id text NOT NULL,
    key text NOT NULL,
    request_sha256 bytea NOT NULL,
    answer jsonb,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_idempotency PRIMARY KEY (subject, org_id, key)
);
CREATE INDEX ix_idempotency_created_at ON idempotency (created_at);

-- The runtime role's least rights. Audit entries and versions are inserted and read, never changed.
GRANT USAGE ON SCHEMA gateway TO gateway;
GRANT SELECT ON schema_version TO gateway;
GRANT SELECT, INSERT, UPDATE ON organization, agent, channel, api_key, audit_head TO gateway;
GRANT SELECT, INSERT ON agent_version, audit_entry TO gateway;
GRANT SELECT, INSERT, DELETE ON pseudonym TO gateway;
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency, outbox, inbox, retry, dead_letter TO gateway;
