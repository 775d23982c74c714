-- One row per completed training step: where its wall time went, on the clock of the trainer's rank
-- 0, what of its rollouts the trainer waited for, and why it was slow. Work and declared resources
-- stand beside the times: two steps on the same hardware need not have done the same work.
CREATE OR REPLACE VIEW step_time AS
WITH listed AS (
    SELECT run_id, batch_id, unnest(group_ids)::UUID AS group_id FROM batch_assembled
),
-- The groups of its batch; where that is unknown (an importer's), those sampled for the step.
step_groups AS (
    SELECT steps.run_id, step, trainer_incarnation, group_id
    FROM steps
    JOIN listed USING (run_id, batch_id)
    UNION ALL
    SELECT steps.run_id, step, trainer_incarnation, group_id
    FROM steps
    JOIN opened_groups ON opened_groups.run_id = steps.run_id AND target_step = step
    ANTI JOIN batch_assembled
        ON batch_assembled.run_id = steps.run_id AND batch_assembled.batch_id = steps.batch_id
),
begun AS (
    SELECT run_id, step, trainer_incarnation, min(occurred_at) AS first_start
    FROM step_groups
    JOIN trajectory_started USING (run_id, group_id)
    GROUP BY run_id, step, trainer_incarnation
),
-- Its members that had ended when their group was decided, whether they vote or not: what comes
-- later held nothing up.
ended AS (
    SELECT
        run_id,
        step,
        trainer_incarnation,
        count(*) AS members,
        count(*) FILTER (stop_reason IN ('turn_cap', 'output_cap', 'context_cap', 'clock_cap'))
            AS members_truncated,
        max(occurred_at) AS last_end,
        arg_max(
            {
                'trajectory_id': trajectory_id,
                'stop_reason': stop_reason,
                'rule_set': decided.rule_set
            },
            -- Of those that ended at one moment, the same one each time.
            {'ended_at': occurred_at, 'trajectory_id': trajectory_id}
        ) AS releasing
    FROM step_groups
    JOIN trajectory_finished USING (run_id, group_id)
    LEFT JOIN (SELECT group_id, rule_set, read_to FROM group_decisions) AS decided USING (group_id)
    WHERE read_to IS NULL OR log_offset < read_to
    GROUP BY run_id, step, trainer_incarnation
),
causes AS (
    SELECT
        judged.run_id,
        step,
        trainer_incarnation,
        arg_max(
            {'stage': cause_stage, 'class': cause_class, 'blame': blame}, judged.log_offset
        ) AS cause
    FROM ended
    JOIN trajectory_judged AS judged
        ON judged.run_id = ended.run_id
        AND judged.trajectory_id = releasing.trajectory_id
        AND judged.rule_set = releasing.rule_set
    GROUP BY judged.run_id, step, trainer_incarnation
),
batches AS (
    SELECT run_id, batch_id, min(ready_at) AS ready_at, min(held_s) AS held_s
    FROM batch_assembled GROUP BY run_id, batch_id
),

-- Everything in seconds after the step's start, on which its phases are.
placed AS (
    SELECT
        steps.*,
        CASE
            WHEN len(phases) > 0 THEN [
                {'start': span.start_offset_s, 'end': span.start_offset_s + span.seconds}
                FOR span IN phases IF span.phase = 'waiting'
            ]
        END AS waits,
        members,
        members_truncated,
        releasing,
        cause,
        date_diff('microsecond', first_start, last_end) / 1e6 AS rollout_s,
        first_start,
        last_end,
        CASE
            WHEN time_quality IN ('exact', 'derived')
                THEN date_diff('microsecond', started_at, first_start) / 1e6
        END AS first_start_s,
        CASE
            WHEN time_quality IN ('exact', 'derived')
                THEN date_diff('microsecond', started_at, last_end) / 1e6
        END AS last_end_s,
        date_diff('microsecond', started_at, ready_at) / 1e6 AS ready_s,
        held_s
    FROM steps
    LEFT JOIN begun USING (run_id, step, trainer_incarnation)
    LEFT JOIN ended USING (run_id, step, trainer_incarnation)
    LEFT JOIN causes USING (run_id, step, trainer_incarnation)
    LEFT JOIN batches USING (run_id, batch_id)
),
waited AS (
    SELECT
        *,
        first_start_s IS NOT NULL AND last_end_s IS NOT NULL AND waits IS NOT NULL AS placeable,
        coalesce(list_sum([
            greatest(0, least(wait.end, last_end_s) - greatest(wait.start, first_start_s))
            FOR wait IN waits
        ]), 0) AS exposed,
        -- None of its attempts had been let in.
        coalesce(list_sum([
            greatest(0, least(wait.end, first_start_s) - wait.start) FOR wait IN waits
        ]), 0) AS before,
        -- They had ended, and the batch was held for room.
        coalesce(list_sum([
            greatest(
                0,
                least(wait.end, ready_s + held_s) - greatest(wait.start, ready_s, last_end_s)
            )
            FOR wait IN waits
        ]), 0) AS held
    FROM placed
),

-- How much longer each phase took than the median of the 20 steps before.
compared AS (
    SELECT
        *,
        min(step) OVER (
            PARTITION BY run_id ORDER BY started_at, step
            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) <= step AS retrained,
        [
            {'phase': 'waiting', 'excess': waiting_s - median(waiting_s) OVER before},
            {'phase': 'loading', 'excess': loading_s - median(loading_s) OVER before},
            {'phase': 'logprobs', 'excess': logprobs_s - median(logprobs_s) OVER before},
            {
                'phase': 'forward_backward',
                'excess': forward_backward_s - median(forward_backward_s) OVER before
            },
            {'phase': 'optimizer', 'excess': optimizer_s - median(optimizer_s) OVER before},
            {'phase': 'publishing', 'excess': publishing_s - median(publishing_s) OVER before},
            {
                'phase': 'engine_switch',
                'excess': engine_switch_s - median(engine_switch_s) OVER before
            },
            {'phase': 'checkpoint', 'excess': checkpoint_s - median(checkpoint_s) OVER before},
            {'phase': 'evaluation', 'excess': evaluation_s - median(evaluation_s) OVER before},
            {
                'phase': 'unattributed',
                'excess': unattributed_s - median(unattributed_s) OVER before
            }
        ] AS excesses
    FROM waited
    WINDOW before AS (
        PARTITION BY run_id ORDER BY started_at, step ROWS BETWEEN 20 PRECEDING AND 1 PRECEDING
    )
),
slowest AS (
    SELECT
        *,
        list_reduce(
            [each FOR each IN excesses IF each.excess > 0],
            lambda one, other: CASE WHEN other.excess > one.excess THEN other ELSE one END,
            {'phase': NULL::VARCHAR, 'excess': 0.0::DOUBLE}
        ) AS slow
    FROM compared
)
SELECT
    slowest.run_id,
    step,
    trainer_incarnation,
    batch_id,
    -- A later life of the trainer went on from before this step.
    coalesce(retrained, false) AS retrained,
    resource_spans.span AS resource_span,
    slowest.started_at,
    slowest.ended_at,
    time_quality,
    slowest.wall_s,
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
    first_start AS rollout_started_at,
    last_end AS rollout_ended_at,
    rollout_s,
    -- exposed_s + assembly_s + backpressure_s = waiting_s
    CASE WHEN placeable THEN exposed END AS exposed_s,
    CASE WHEN placeable THEN rollout_s - exposed END AS overlapped_s,
    CASE WHEN placeable THEN waiting_s - exposed - before - held END AS assembly_s,
    CASE WHEN placeable THEN before + held END AS backpressure_s,
    -- Whose end released the batch: the last one.
    releasing.trajectory_id AS releasing_trajectory,
    releasing.stop_reason AS releasing_stop_reason,
    -- By the rule set of its group's decision; null where nothing failed.
    cause.stage AS releasing_cause_stage,
    cause.class AS releasing_cause_class,
    cause.blame AS releasing_blame,
    releasing.rule_set AS rule_set,
    -- The phase furthest above its median of the 20 steps before; null: none is above, or no step
    -- came before.
    slow.phase AS why_slow,
    CASE WHEN slow.phase IS NOT NULL THEN slow.excess END AS why_slow_s,
    trajectories,
    trained_tokens,
    computed_tokens,
    members,
    members_truncated,
    members_truncated / members AS truncated_share
FROM slowest
LEFT JOIN resource_spans
    ON resource_spans.run_id = slowest.run_id
    AND slowest.started_at >= resource_spans.started_at
    AND (resource_spans.ended_at IS NULL OR slowest.started_at < resource_spans.ended_at);
