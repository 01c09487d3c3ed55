-- What work that nobody waits for costs, by person, routine and goal, and what limits it. Released: never
-- edited, only followed.
ALTER TABLE organization ADD COLUMN proactive_limit_nanousd bigint;
-- Limits that were said before are not kept anywhere here: the directory is asked for them again.
DELETE FROM directory_copy;

CREATE TABLE routine (
    org text NOT NULL,
    routine_id text NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    monthly_nanousd bigint,
    config_revision bigint NOT NULL,
    digest text NOT NULL,
    CONSTRAINT pk_routine PRIMARY KEY (org, routine_id)
);
CREATE TABLE goal (
    org text NOT NULL,
    goal_id text NOT NULL,
    budget_nanousd bigint NOT NULL,
    CONSTRAINT pk_goal PRIMARY KEY (org, goal_id)
);
GRANT SELECT, INSERT, UPDATE ON routine, goal TO ledger;

ALTER TABLE run ADD COLUMN counted_person text, ADD COLUMN counted_routine text,
    ADD COLUMN counted_goal text;
UPDATE run SET counted_routine = root.routine_id, counted_goal = root.goal_id,
    counted_person = CASE WHEN root.surface = 'proactive' THEN root.user_id END
    FROM run root
    WHERE root.org = run.org AND root.run_id = run.root_run_id
        AND (root.routine_id IS NOT NULL OR root.goal_id IS NOT NULL OR root.surface = 'proactive');
INSERT INTO month_spend (org, scope, scope_id, month, cost_nanousd, unpriced_count, late_nanousd)
SELECT org, scope, id, month, sum(cost), sum(floors), sum(late)
FROM (
    SELECT org, run_id, month, cost_nanousd AS cost,
        unpriced_count + missing_delegate_count AS floors, 0 AS late FROM run_line
    UNION ALL
    SELECT org, run_id, late_month, 0, 0, cost_nanousd FROM run_line WHERE late_month <> ''
) AS amount JOIN run USING (org, run_id)
CROSS JOIN LATERAL (VALUES ('person', counted_person), ('routine', counted_routine)) AS own (scope, id)
WHERE id IS NOT NULL
GROUP BY org, scope, id, month;

INSERT INTO month_spend (org, scope, scope_id, month, cost_nanousd, unpriced_count, late_nanousd)
SELECT org, 'goal', counted_goal, '', sum(l.cost_nanousd),
    sum(l.unpriced_count + l.missing_delegate_count), 0
FROM run_line l JOIN run USING (org, run_id)
WHERE counted_goal IS NOT NULL
GROUP BY org, counted_goal;
