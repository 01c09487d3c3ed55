-- What each person's proactive work costs in a month, and what limits it. Released: never edited, only
-- followed.
ALTER TABLE organization ADD COLUMN proactive_limit_nanousd bigint;
-- Limits that were said before are not kept anywhere here: the directory is asked for them again.
DELETE FROM directory_copy;

ALTER TABLE run ADD COLUMN counted_person text;
UPDATE run SET counted_person = root.user_id FROM run root
    WHERE root.org = run.org AND root.run_id = run.root_run_id AND root.surface = 'proactive'
        AND root.user_id IS NOT NULL;
INSERT INTO month_spend (org, scope, scope_id, month, cost_nanousd, unpriced_count, late_nanousd)
SELECT org, 'person', counted_person, month, sum(cost), sum(floors), sum(late)
FROM (
    SELECT org, run_id, month, cost_nanousd AS cost,
        unpriced_count + missing_delegate_count AS floors, 0 AS late FROM run_line
    UNION ALL
    SELECT org, run_id, late_month, 0, 0, cost_nanousd FROM run_line WHERE late_month <> ''
) AS amount JOIN run USING (org, run_id)
WHERE counted_person IS NOT NULL
GROUP BY org, counted_person, month;
