-- One row per broken identity that only other runs' facts tell, since a producer is known to be gone
-- by when others are heard of, and numbers what it writes of all runs; columns as in `conservation`.
CREATE OR REPLACE VIEW broken_across_runs AS
WITH
-- An evaluation has as many slots as it declared: never more, and not fewer once whoever opened
-- its groups is gone.
evaluations AS (
    SELECT run_id, tasks::HUGEINT * attempts_per_task AS declared, attempts_per_task
    FROM scopes WHERE kind = 'eval'
),
openers AS (
    SELECT run_id, incarnation FROM run_declared SEMI JOIN evaluations USING (run_id)
    UNION SELECT run_id, incarnation FROM group_opened SEMI JOIN evaluations USING (run_id)
),
over AS (
    SELECT openers.run_id
    FROM openers
    LEFT JOIN producers ON producers.incarnation = openers.incarnation
    GROUP BY openers.run_id
    HAVING bool_and(
        coalesce(
            state = 'closed' OR unseen_until < (SELECT max(last_log_time) FROM producer_numbers),
            false
        )
    )
),
evaluated_tasks AS (
    SELECT run_id, task_id, sum(slots) AS slots
    FROM (
        SELECT run_id, task_id, expected_size AS slots FROM opened_groups
        UNION ALL SELECT run_id, task_id, 0 FROM task_declared
        UNION ALL SELECT run_id, task_id, 0 FROM task_validated
    )
    SEMI JOIN evaluations USING (run_id)
    GROUP BY run_id, task_id
),
evaluation_slots AS (
    SELECT
        'evaluation_slots' AS identity, 'log' AS scope, run_id, NULL::BIGINT AS step,
        NULL::UUID AS group_id, NULL::UUID AS trajectory_id,
        declared::VARCHAR AS expected,
        opened.slots::VARCHAR AS found,
        printf(
            'this evaluation declared %s slots (tasks times attempts), and %s were opened',
            declared::VARCHAR, opened.slots::VARCHAR
        ) AS detail
    FROM (
        SELECT run_id, declared, coalesce(sum(slots), 0) AS slots
        FROM evaluations LEFT JOIN evaluated_tasks USING (run_id)
        GROUP BY run_id, declared
    ) AS opened
    LEFT JOIN over USING (run_id)
    WHERE slots > declared OR (over.run_id IS NOT NULL AND slots < declared)
),
task_slots AS (
    SELECT
        'task_slots', 'log', run_id, NULL::BIGINT, NULL::UUID, NULL::UUID,
        attempts_per_task::VARCHAR,
        tasks.slots::VARCHAR,
        printf(
            'each task of this evaluation gets %d slots, and %s got %s',
            attempts_per_task, task_id, tasks.slots::VARCHAR
        )
    FROM evaluations
    JOIN evaluated_tasks AS tasks USING (run_id)
    LEFT JOIN over USING (run_id)
    WHERE slots > attempts_per_task OR (over.run_id IS NOT NULL AND slots < attempts_per_task)
),
no_hole AS (
    SELECT
        'no_hole', 'log', run_id, NULL::BIGINT, NULL::UUID, NULL::UUID,
        printf('%s to %s', missing_from::VARCHAR, missing_to::VARCHAR), 'none',
        printf(
            'producer %s (incarnation %s) has no fact numbered %s to %s',
            coalesce(producer, '?'), incarnation::VARCHAR,
            missing_from::VARCHAR, missing_to::VARCHAR
        )
    FROM sequence_holes
)
FROM evaluation_slots
UNION ALL FROM task_slots
UNION ALL FROM no_hole;
