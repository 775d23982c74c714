-- One row per try of a trajectory at having a sandbox.
CREATE OR REPLACE VIEW sandboxes AS
WITH tries AS (
    SELECT run_id, trajectory_id, try_no FROM sandbox_started
    UNION SELECT run_id, trajectory_id, try_no FROM sandbox_prepared
    UNION SELECT run_id, trajectory_id, try_no FROM sandbox_failed
    UNION SELECT run_id, trajectory_id, try_no FROM sandbox_stopped
),
started AS (
    SELECT
        trajectory_id,
        try_no,
        any_value(group_id) AS group_id,
        any_value(slot) AS slot,
        any_value(sandbox_id) AS sandbox_id,
        any_value(backend) AS backend,
        any_value(template) AS template,
        any_value(host) AS host,
        any_value(vcpus) AS vcpus,
        min(occurred_at) AS started_at,
        any_value(queue_s) AS queue_s,
        any_value(start_s) AS start_s
    FROM sandbox_started GROUP BY trajectory_id, try_no
),
prepared AS (
    SELECT trajectory_id, try_no, any_value(setup_s) AS setup_s
    FROM sandbox_prepared GROUP BY trajectory_id, try_no
),
failed AS (
    SELECT
        trajectory_id,
        try_no,
        any_value(group_id) AS group_id,
        any_value(slot) AS slot,
        any_value(sandbox_id) AS sandbox_id,
        any_value(backend) AS backend,
        any_value(template) AS template,
        count(*) AS failures,
        arg_min(stage, occurred_at) AS failed_stage,
        arg_min(error_type, occurred_at) AS error_type,
        arg_min(error.head, occurred_at) AS error_head,
        sum(seconds) AS failed_s
    FROM sandbox_failed GROUP BY trajectory_id, try_no
),
stopped AS (
    SELECT
        trajectory_id,
        try_no,
        any_value(group_id) AS group_id,
        any_value(slot) AS slot,
        max(occurred_at) AS stopped_at,
        any_value(reason) AS stop_reason,
        any_value(lifetime_s) AS lifetime_s
    FROM sandbox_stopped GROUP BY trajectory_id, try_no
)
SELECT
    run_id,
    coalesce(started.group_id, failed.group_id, stopped.group_id) AS group_id,
    coalesce(started.slot, failed.slot, stopped.slot) AS slot,
    trajectory_id,
    try_no,
    coalesce(started.sandbox_id, failed.sandbox_id) AS sandbox_id,
    coalesce(started.backend, failed.backend) AS backend,
    coalesce(started.template, failed.template) AS template,
    host,
    vcpus,
    CASE
        WHEN failures > 0 THEN 'failed'
        WHEN stopped_at IS NOT NULL THEN 'stopped'
        ELSE 'running'
    END AS state,
    started_at,
    queue_s,
    start_s,
    setup_s,
    failed_stage,
    error_type,
    error_head,
    failed_s,
    stopped_at,
    stop_reason,
    lifetime_s
FROM tries
LEFT JOIN started USING (trajectory_id, try_no)
LEFT JOIN prepared USING (trajectory_id, try_no)
LEFT JOIN failed USING (trajectory_id, try_no)
LEFT JOIN stopped USING (trajectory_id, try_no);
