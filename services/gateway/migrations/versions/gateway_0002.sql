-- People and the feed. Released: never edited, only followed.
ALTER TABLE organization ADD COLUMN proactive_limit_nanousd bigint NOT NULL DEFAULT 1000000000;
ALTER TABLE organization ADD COLUMN public_live_data boolean NOT NULL DEFAULT false;
ALTER TABLE api_key ADD COLUMN created_by_user_id text;

CREATE TABLE person (
    person_id text NOT NULL,
    email text NOT NULL,
    name text NOT NULL,
    password_hash text NOT NULL,
    is_app_admin boolean NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT pk_person PRIMARY KEY (person_id),
    CONSTRAINT uq_person_email UNIQUE (email)
);

CREATE TABLE member (
    org_id text NOT NULL,
    user_id text NOT NULL,
    person_id text,
    name text NOT NULL,
    email text,
    role text NOT NULL,
    entity_revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    removed_at timestamptz,
    CONSTRAINT pk_member PRIMARY KEY (org_id, user_id),
    CONSTRAINT fk_member_org_id_organization FOREIGN KEY (org_id) REFERENCES organization (org_id),
    CONSTRAINT fk_member_person_id_person FOREIGN KEY (person_id) REFERENCES person (person_id)
);
CREATE UNIQUE INDEX ix_member_person_id_org_id ON member (person_id, org_id)
    WHERE removed_at IS NULL AND person_id IS NOT NULL;
CREATE INDEX ix_member_owners ON member (org_id) WHERE removed_at IS NULL AND role = 'owner';

CREATE TABLE department (
    org_id text NOT NULL,
    department_id text NOT NULL,
    name text NOT NULL,
    lead_user_id text,
    monthly_budget_nanousd bigint,
    cap_revision bigint NOT NULL,
    members jsonb NOT NULL,
    entity_revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    removed_at timestamptz,
    CONSTRAINT pk_department PRIMARY KEY (org_id, department_id),
    CONSTRAINT fk_department_org_id_organization
        FOREIGN KEY (org_id) REFERENCES organization (org_id)
);

CREATE TABLE session (
    session_id text NOT NULL,
    secret_sha256 bytea NOT NULL,
    person_id text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT pk_session PRIMARY KEY (session_id),
    CONSTRAINT fk_session_person_id_person FOREIGN KEY (person_id) REFERENCES person (person_id)
);
CREATE INDEX ix_session_person_id ON session (person_id);
CREATE INDEX ix_session_expires_at ON session (expires_at);

CREATE TABLE sign_in_failure (
    subject_sha256 bytea NOT NULL,
    failures integer NOT NULL,
    first_at timestamptz NOT NULL,
    locked_until timestamptz,
    CONSTRAINT pk_sign_in_failure PRIMARY KEY (subject_sha256)
);
CREATE INDEX ix_sign_in_failure_first_at ON sign_in_failure (first_at);

CREATE TABLE invitation (
    invitation_id text NOT NULL,
    secret_sha256 bytea NOT NULL,
    org_id text NOT NULL,
    user_id text NOT NULL,
    name text NOT NULL,
    email text NOT NULL,
    role text NOT NULL,
    invited_by text NOT NULL,
    invited_by_user_id text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    accepted_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT pk_invitation PRIMARY KEY (invitation_id),
    CONSTRAINT fk_invitation_org_id_organization
        FOREIGN KEY (org_id) REFERENCES organization (org_id)
);
CREATE INDEX ix_invitation_org_id_created_at ON invitation (org_id, created_at);

CREATE TABLE heard (
    position bigint GENERATED ALWAYS AS IDENTITY,
    org_id text NOT NULL,
    event text NOT NULL,
    for_channels boolean NOT NULL,
    channel_id text,
    people_need text,
    body bytea NOT NULL,
    heard_at timestamptz NOT NULL,
    CONSTRAINT pk_heard PRIMARY KEY (position)
);
CREATE INDEX ix_heard_org_id_position ON heard (org_id, position);
CREATE INDEX ix_heard_heard_at ON heard (heard_at);

CREATE TABLE heard_horizon (
    id integer NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT pk_heard_horizon PRIMARY KEY (id)
);

GRANT SELECT, INSERT, UPDATE ON person, member, department, invitation, heard_horizon TO gateway;
GRANT SELECT, INSERT, UPDATE, DELETE ON session, sign_in_failure TO gateway;
GRANT SELECT, INSERT, DELETE ON heard TO gateway;
