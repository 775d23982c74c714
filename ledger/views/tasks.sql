-- One row per run and task: as last declared and last validated, and how often it was tried.
CREATE OR REPLACE VIEW tasks AS
WITH declared AS (
    SELECT * FROM task_declared
    QUALIFY row_number()
        OVER (PARTITION BY run_id, task_id ORDER BY log_time DESC, log_offset DESC) = 1
),
validated AS (
    SELECT run_id, task_id, valid, gold_passes, empty_fails, flaky, gold_s, empty_s, template
    FROM task_validated
    QUALIFY row_number()
        OVER (PARTITION BY run_id, task_id ORDER BY log_time DESC, log_offset DESC) = 1
),
opened AS (
    SELECT run_id, task_id, count(*) AS groups, sum(expected_size) AS slots
    FROM opened_groups GROUP BY run_id, task_id
),
known AS (
    SELECT run_id, task_id FROM declared
    UNION SELECT run_id, task_id FROM validated
    UNION SELECT run_id, task_id FROM opened
)
SELECT
    run_id,
    task_id,
    stratum,
    stratum_weight,
    task_checksum,
    repository,
    base_commit,
    valid,
    gold_passes,
    empty_fails,
    flaky,
    gold_s,
    empty_s,
    template,
    coalesce(groups, 0) AS groups,
    coalesce(slots, 0) AS slots
FROM known
LEFT JOIN declared USING (run_id, task_id)
LEFT JOIN validated USING (run_id, task_id)
LEFT JOIN opened USING (run_id, task_id);
