-- People of the directory. Released: never edited, only followed.
CREATE TABLE member (
    org text NOT NULL,
    user_id text NOT NULL,
    name text,
    role text,
    changed_revision bigint NOT NULL DEFAULT 0,
    removed_revision bigint NOT NULL DEFAULT 0,
    CONSTRAINT pk_member PRIMARY KEY (org, user_id)
);

CREATE TABLE department (
    org text NOT NULL,
    department_id text NOT NULL,
    name text,
    lead_user_id text,
    monthly_nanousd bigint,
    cap_revision bigint,
    changed_revision bigint NOT NULL DEFAULT 0,
    removed_revision bigint NOT NULL DEFAULT 0,
    CONSTRAINT pk_department PRIMARY KEY (org, department_id)
);

CREATE TABLE department_member (
    org text NOT NULL,
    department_id text NOT NULL,
    user_id text NOT NULL,
    effective_at timestamptz NOT NULL,
    ends_at timestamptz,
    CONSTRAINT pk_department_member PRIMARY KEY (org, department_id, user_id, effective_at),
    CONSTRAINT fk_department_member_org_department_id_department
        FOREIGN KEY (org, department_id) REFERENCES department (org, department_id)
);
CREATE INDEX ix_department_member_org_user_id ON department_member (org, user_id);

CREATE TABLE directory_copy (
    id integer NOT NULL,
    cursor text,
    finished_at timestamptz,
    CONSTRAINT pk_directory_copy PRIMARY KEY (id)
);

GRANT SELECT, INSERT, UPDATE ON member, department, directory_copy TO ledger;
GRANT SELECT, INSERT, UPDATE, DELETE ON department_member TO ledger;
