-- One row per attempt that ended, or was aborted or given up, after 90% of its step's attempts had
-- ended: where its time went, from its request to its end. What overlaps counts once per stage, and
-- what no stage covers is unattributed_s.
CREATE OR REPLACE VIEW stragglers AS
WITH slow AS (
    SELECT
        attempts.*,
        steps.started_at AS step_started_at,
        t90_s,
        attempts.started_at
        - to_microseconds((greatest(0, least(coalesce(queue_s, 0), 31536000)) * 1e6)::BIGINT) AS asked_at
    FROM step_attempts AS attempts
    JOIN rollout_quantiles AS steps USING (run_id, step)
    WHERE date_diff('microsecond', steps.started_at, alive_until) / 1e6 > t90_s
),
-- Seconds before the fact that tells of them.
told AS (
    SELECT run_id, trajectory_id, 'queue' AS stage, occurred_at, queue_s AS seconds, 0 AS ago_s
    FROM trajectory_started
    UNION ALL
    SELECT run_id, trajectory_id, 'queue', occurred_at, queue_s, coalesce(start_s, 0)
    FROM sandbox_started
    UNION ALL
    SELECT run_id, trajectory_id, 'sandbox_start', occurred_at, start_s, 0 FROM sandbox_started
    UNION ALL
    SELECT run_id, trajectory_id, stage, occurred_at, seconds, 0 FROM sandbox_failed
    WHERE stage IN ('sandbox_start', 'setup')
    UNION ALL
    SELECT run_id, trajectory_id, 'setup', occurred_at, setup_s, 0 FROM sandbox_prepared
    UNION ALL
    SELECT run_id, trajectory_id, 'model', occurred_at, client_s, 0 FROM turn_completed
    UNION ALL
    SELECT run_id, trajectory_id, 'model', occurred_at, seconds, 0 FROM turn_failed
    UNION ALL
    SELECT run_id, trajectory_id, 'tool', occurred_at, wall_s, 0 FROM tool_call_completed
    UNION ALL
    SELECT run_id, trajectory_id, 'verify', occurred_at, verify_s, 0 FROM reward_assigned
),
-- In seconds after the request, and not beyond the end.
stretches AS (
    SELECT
        run_id,
        step,
        trajectory_id,
        stage,
        greatest(0, date_diff('microsecond', asked_at, occurred_at) / 1e6 - ago_s - seconds)
            AS since_s,
        least(
            date_diff('microsecond', asked_at, alive_until) / 1e6,
            date_diff('microsecond', asked_at, occurred_at) / 1e6 - ago_s
        ) AS until_s
    FROM slow
    JOIN told USING (run_id, trajectory_id)
    WHERE seconds > 0
),
reached AS (
    SELECT
        *,
        max(until_s) OVER (
            PARTITION BY run_id, step, trajectory_id, stage ORDER BY since_s, until_s
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS stage_covered_s,
        max(until_s) OVER (
            PARTITION BY run_id, step, trajectory_id ORDER BY since_s, until_s
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_s
    FROM stretches
    WHERE since_s < until_s
),
measured AS (
    SELECT
        run_id,
        step,
        trajectory_id,
        stage,
        greatest(0, until_s - greatest(since_s, coalesce(stage_covered_s, since_s))) AS seconds,
        greatest(0, until_s - greatest(since_s, coalesce(covered_s, since_s))) AS anew_s
    FROM reached
),
united AS (
    SELECT
        run_id,
        step,
        trajectory_id,
        coalesce(sum(seconds) FILTER (stage = 'queue'), 0) AS queue_s,
        coalesce(sum(seconds) FILTER (stage = 'sandbox_start'), 0) AS sandbox_start_s,
        coalesce(sum(seconds) FILTER (stage = 'setup'), 0) AS setup_s,
        coalesce(sum(seconds) FILTER (stage = 'model'), 0) AS model_s,
        coalesce(sum(seconds) FILTER (stage = 'tool'), 0) AS tool_s,
        coalesce(sum(seconds) FILTER (stage = 'verify'), 0) AS verify_s,
        sum(anew_s) AS attributed_s
    FROM measured GROUP BY run_id, step, trajectory_id
)
SELECT
    slow.run_id,
    slow.step,
    group_id,
    slot,
    slow.trajectory_id,
    state,
    stop_reason,
    asked_at,
    started_at,
    alive_until,
    t90_s,
    -- After the step's first start.
    date_diff('microsecond', step_started_at, alive_until) / 1e6 AS ended_s,
    date_diff('microsecond', step_started_at, started_at) / 1e6 AS late_start_s,
    date_diff('microsecond', started_at, alive_until) / 1e6 AS alive_s,
    -- Had it started with the first, it would have ended by t90_s: a late slot is no straggler.
    date_diff('microsecond', started_at, alive_until) / 1e6 <= t90_s AS only_late,
    -- From its request on.
    date_diff('microsecond', asked_at, alive_until) / 1e6 AS total_s,
    coalesce(united.queue_s, 0) AS queue_s,
    coalesce(sandbox_start_s, 0) AS sandbox_start_s,
    coalesce(setup_s, 0) AS setup_s,
    coalesce(model_s, 0) AS model_s,
    coalesce(tool_s, 0) AS tool_s,
    coalesce(verify_s, 0) AS verify_s,
    date_diff('microsecond', asked_at, alive_until) / 1e6 - coalesce(attributed_s, 0)
        AS unattributed_s,
    -- Null where no stage is known.
    CASE
        WHEN attributed_s > 0 THEN (
            list_max([
                {'seconds': united.queue_s, 'stage': 'queue'},
                {'seconds': sandbox_start_s, 'stage': 'sandbox_start'},
                {'seconds': setup_s, 'stage': 'setup'},
                {'seconds': model_s, 'stage': 'model'},
                {'seconds': tool_s, 'stage': 'tool'},
                {'seconds': verify_s, 'stage': 'verify'}
            ])
        ).stage
    END AS longest_stage
FROM slow
LEFT JOIN united USING (run_id, step, trajectory_id);
