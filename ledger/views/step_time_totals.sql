-- One row per run with a trainer: its steps' times summed, as far as they may be summed. Rollouts of
-- several steps overlap, so they are a union of intervals; waits don't, and neither do walls.
CREATE OR REPLACE VIEW step_time_totals AS
WITH summed AS (
    SELECT
        run_id,
        count(*) AS steps,
        count(*) FILTER (retrained) AS retrained_steps,
        min(started_at) AS started_at,
        max(ended_at) AS ended_at,
        sum(wall_s) AS wall_s,
        coalesce(sum(wall_s) FILTER (retrained), 0) AS retrained_s,
        sum(waiting_s) AS waiting_s,
        sum(loading_s) AS loading_s,
        sum(logprobs_s) AS logprobs_s,
        sum(forward_backward_s) AS forward_backward_s,
        sum(optimizer_s) AS optimizer_s,
        sum(publishing_s) AS publishing_s,
        sum(engine_switch_s) AS engine_switch_s,
        sum(checkpoint_s) AS checkpoint_s,
        sum(evaluation_s) AS evaluation_s,
        sum(unattributed_s) AS unattributed_s,
        count(exposed_s) AS steps_with_rollout,
        sum(exposed_s) AS exposed_s,
        sum(assembly_s) AS assembly_s,
        sum(backpressure_s) AS backpressure_s,
        sum(trajectories) AS trajectories,
        sum(trained_tokens) AS trained_tokens,
        sum(computed_tokens) AS computed_tokens,
        sum(members) AS members,
        sum(members_truncated) AS members_truncated
    FROM step_time GROUP BY run_id
),
reached AS (
    SELECT
        run_id,
        rollout_started_at,
        rollout_ended_at,
        max(rollout_ended_at) OVER (
            PARTITION BY run_id ORDER BY rollout_started_at, rollout_ended_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_until
    FROM step_time
    WHERE exposed_s IS NOT NULL
),
united AS (
    SELECT
        run_id,
        sum(
            greatest(
                0,
                date_diff(
                    'microsecond',
                    greatest(rollout_started_at, coalesce(covered_until, rollout_started_at)),
                    rollout_ended_at
                )
            )
        ) / 1e6 AS rollout_union_s
    FROM reached GROUP BY run_id
),
down AS (
    SELECT run_id, sum(seconds) AS downtime_s FROM downtime GROUP BY run_id
)
SELECT
    run_id,
    steps,
    retrained_steps,
    started_at,
    ended_at,
    wall_s,
    retrained_s,
    coalesce(downtime_s, 0) AS downtime_s,
    waiting_s,
    loading_s,
    logprobs_s,
    forward_backward_s,
    optimizer_s,
    publishing_s,
    engine_switch_s,
    checkpoint_s,
    evaluation_s,
    unattributed_s,
    -- The next five are of so many steps: those whose rollouts can be placed in time.
    steps_with_rollout,
    rollout_union_s,
    exposed_s,
    rollout_union_s - exposed_s AS overlapped_union_s,
    assembly_s,
    backpressure_s,
    trajectories,
    trained_tokens,
    computed_tokens,
    members,
    members_truncated,
    members_truncated / members AS truncated_share
FROM summed
LEFT JOIN united USING (run_id)
LEFT JOIN down USING (run_id);
