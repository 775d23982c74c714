-- One row per stretch of a trajectory that a fact tells of: in which stage it was, from when to when.
-- Stretches may overlap, and time that no fact tells of is in none.
CREATE OR REPLACE VIEW timeline AS
WITH told AS (
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at AS ended_at,
        'queue' AS stage, queue_s AS seconds, 'queue' AS label, NULL::BIGINT AS number,
        NULL::VARCHAR AS error_type
    FROM trajectory_started WHERE queue_s > 0
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id,
        occurred_at - to_microseconds((coalesce(start_s, 0) * 1e6)::BIGINT),
        'queue', queue_s, 'sandbox slot', try_no, NULL
    FROM sandbox_started WHERE queue_s > 0 AND coalesce(start_s, 0) BETWEEN 0 AND 31536000
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        'sandbox_start', start_s, sandbox_id, try_no, NULL
    FROM sandbox_started
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        'setup', setup_s, sandbox_id, try_no, NULL
    FROM sandbox_prepared
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        stage, seconds, coalesce(sandbox_id, 'sandbox'), try_no, error_type
    FROM sandbox_failed
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        'model', client_s, coalesce(finish_reason, 'turn'), turn_no, NULL
    FROM turn_completed
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        'model', seconds, stage, turn_no, error_type
    FROM turn_failed
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        'tool', wall_s, name, tool_call_no, error_type
    FROM tool_call_completed
    UNION ALL
    SELECT
        run_id, group_id, slot, trajectory_id, occurred_at,
        'verify', verify_s, verifier, NULL, error_type
    FROM reward_assigned
)
SELECT
    run_id,
    group_id,
    slot,
    trajectory_id,
    stage,
    label,
    -- Of the turn, tool call or try.
    number,
    -- Null where the seconds are unknown (or a foreign writer's mistake).
    CASE
        WHEN seconds BETWEEN 0 AND 31536000
            THEN ended_at - to_microseconds((seconds * 1e6)::BIGINT)
    END AS started_at,
    ended_at,
    seconds,
    error_type
FROM told;
