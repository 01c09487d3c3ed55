-- What trees spent, by when they began. Released: never edited, only followed.
CREATE TABLE spend_slot (
    org text NOT NULL,
    grain_s integer NOT NULL,
    begins_at timestamptz NOT NULL,
    dimension text NOT NULL,
    value text NOT NULL,
    cost_nanousd numeric(38, 0) NOT NULL DEFAULT 0,
    run_count numeric(38, 0) NOT NULL DEFAULT 0,
    floor_count numeric(38, 0) NOT NULL DEFAULT 0,
    present_count numeric(38, 0) NOT NULL DEFAULT 0,
    CONSTRAINT pk_spend_slot PRIMARY KEY (org, grain_s, begins_at, dimension, value)
) WITH (fillfactor = 70);

-- Trees that a question entered: in no slot yet, so that it waits for nobody who holds one.
CREATE TABLE uncounted_tree (
    id bigint GENERATED ALWAYS AS IDENTITY,
    org text NOT NULL,
    began_at timestamptz NOT NULL,
    agent_id text NOT NULL,
    user_id text NOT NULL,
    CONSTRAINT pk_uncounted_tree PRIMARY KEY (id)
);
CREATE INDEX ix_uncounted_tree_began ON uncounted_tree (org, began_at);

-- Runs of one agent: a page of them, and how many there are.
CREATE INDEX ix_run_agent ON run (org, agent_id, shown_start DESC, run_id)
    WHERE run_id = root_run_id;

INSERT INTO spend_slot (org, grain_s, begins_at, dimension, value, cost_nanousd, run_count,
    floor_count, present_count)
WITH tree AS (
    SELECT org, run_id, shown_start, coalesce(agent_id, '') AS agent_id,
        coalesce(started_by_user_id, '') AS user_id, tree_cost_nanousd AS cost_nanousd,
        (tree_unpriced_count > 0 OR tree_missing_delegate_count > 0)::integer AS floors
    FROM run WHERE run_id = root_run_id AND shown_start IS NOT NULL
), line AS (
    SELECT tree.org, tree.shown_start, part.dimension, part.value, sum(l.cost_nanousd) AS cost,
        bool_or(l.request_count > 0 OR l.unpriced_count > 0)::integer AS counts,
        sum(l.unpriced_count + l.missing_delegate_count) AS floors,
        bool_or(l.cost_nanousd <> 0 OR l.request_count <> 0 OR l.unpriced_count <> 0
            OR l.missing_delegate_count <> 0)::integer AS is_there
    FROM tree
    JOIN run r ON r.org = tree.org AND r.root_run_id = tree.run_id
    JOIN run_line l ON l.org = r.org AND l.run_id = r.run_id
    CROSS JOIN LATERAL (VALUES ('provider', l.provider), ('key', l.key_id))
        AS part (dimension, value)
    GROUP BY tree.org, tree.shown_start, r.run_id, part.dimension, part.value
), part AS (
    SELECT tree.org, shown_start, kind.dimension, kind.value, cost_nanousd AS cost, 1 AS counts,
        floors, 1 AS is_there
    FROM tree
    CROSS JOIN LATERAL (VALUES ('all', ''), ('agent', agent_id), ('person', user_id))
        AS kind (dimension, value)
    UNION ALL
    SELECT org, shown_start, dimension, value, cost, counts, floors, is_there FROM line
)
SELECT org, grain.grain_s,
    date_bin(make_interval(secs => grain.grain_s), shown_start, '0001-01-01 00:00:00+00'),
    dimension, value, sum(cost), sum(counts), sum(floors), sum(is_there)
FROM part JOIN (VALUES (900), (3600), (86400)) AS grain (grain_s)
    ON (grain.grain_s = 900) = (part.dimension = 'all')
GROUP BY 1, 2, 3, 4, 5;

GRANT SELECT, INSERT, UPDATE ON spend_slot TO ledger;
GRANT SELECT, INSERT, UPDATE, DELETE ON uncounted_tree TO ledger;
