-- The floor's tables, the same in every room's schema. Once released: never edited, only followed.
CREATE TABLE inbox (
    org text NOT NULL,
    producer text NOT NULL,
    source text NOT NULL,
    event_id text NOT NULL,
    digest bytea NOT NULL,
    handled_at timestamptz NOT NULL,
    CONSTRAINT pk_inbox PRIMARY KEY (org, producer, source, event_id)
);
CREATE INDEX ix_inbox_handled_at ON inbox (handled_at);

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY,
    subject text NOT NULL,
    message_id text NOT NULL,
    body bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,
    stream text,
    stream_sequence bigint,
    CONSTRAINT pk_outbox PRIMARY KEY (id)
);
CREATE INDEX ix_outbox_waiting ON outbox (id) WHERE published_at IS NULL;

CREATE TABLE retry (
    id bigint GENERATED ALWAYS AS IDENTITY,
    org text NOT NULL,
    stream text NOT NULL,
    stream_sequence bigint NOT NULL,
    subject text NOT NULL,
    body bytea NOT NULL,
    tries integer NOT NULL,
    reason text NOT NULL,
    next_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    stored_at timestamptz NOT NULL,
    digest bytea NOT NULL GENERATED ALWAYS AS (sha256(body)) STORED,
    CONSTRAINT pk_retry PRIMARY KEY (id),
    CONSTRAINT uq_retry_message UNIQUE (stream, stream_sequence, digest)
);
CREATE INDEX ix_retry_next_at ON retry (next_at);
CREATE INDEX ix_retry_org ON retry (org);

CREATE TABLE dead_letter (
    id uuid NOT NULL,
    org text NOT NULL,
    stream text NOT NULL,
    stream_sequence bigint NOT NULL,
    subject text NOT NULL,
    body bytea NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    tries integer NOT NULL,
    dead_at timestamptz NOT NULL,
    stored_at timestamptz NOT NULL,
    settled_at timestamptz,
    settled_as text,
    digest bytea NOT NULL GENERATED ALWAYS AS (sha256(body)) STORED,
    CONSTRAINT pk_dead_letter PRIMARY KEY (id),
    CONSTRAINT uq_dead_letter_message UNIQUE (stream, stream_sequence, digest)
);
CREATE INDEX ix_dead_letter_waiting ON dead_letter (dead_at) WHERE settled_at IS NULL;

CREATE TABLE audit_head (
    chain text NOT NULL,
    number bigint NOT NULL,
    hash text NOT NULL,
    CONSTRAINT pk_audit_head PRIMARY KEY (chain)
);

CREATE TABLE audit_entry (
    chain text NOT NULL,
    number bigint NOT NULL,
    id uuid NOT NULL,
    hash text NOT NULL,
    previous text,
    body bytea NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_audit_entry PRIMARY KEY (chain, number),
    CONSTRAINT uq_audit_entry_id UNIQUE (id)
);
