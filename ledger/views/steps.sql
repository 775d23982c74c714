-- One row per completed training step; its phases exclude one another, and what they leave of the
-- wall time is unattributed_s. A phase that a step doesn't list took no time; of a step that lists
-- none they are unknown.
CREATE OR REPLACE VIEW steps AS
WITH spent AS (
    SELECT
        event_id,
        unnest(phases).phase AS phase,
        unnest(phases).seconds AS seconds
    FROM step_completed
),
by_phase AS (
    SELECT
        event_id,
        coalesce(sum(seconds) FILTER (phase = 'waiting'), 0) AS waiting_s,
        coalesce(sum(seconds) FILTER (phase = 'loading'), 0) AS loading_s,
        coalesce(sum(seconds) FILTER (phase = 'logprobs'), 0) AS logprobs_s,
        coalesce(sum(seconds) FILTER (phase = 'forward_backward'), 0) AS forward_backward_s,
        coalesce(sum(seconds) FILTER (phase = 'optimizer'), 0) AS optimizer_s,
        coalesce(sum(seconds) FILTER (phase = 'publishing'), 0) AS publishing_s,
        coalesce(sum(seconds) FILTER (phase = 'engine_switch'), 0) AS engine_switch_s,
        coalesce(sum(seconds) FILTER (phase = 'checkpoint'), 0) AS checkpoint_s,
        coalesce(sum(seconds) FILTER (phase = 'evaluation'), 0) AS evaluation_s,
        sum(seconds) AS attributed_s
    FROM spent GROUP BY event_id
)
SELECT
    run_id,
    step,
    incarnation AS trainer_incarnation,
    batch_id,
    from_version,
    to_version,
    started_at,
    occurred_at AS ended_at,
    time_quality,
    wall_s,
    waiting_s,
    loading_s,
    logprobs_s,
    forward_backward_s,
    optimizer_s,
    publishing_s,
    engine_switch_s,
    checkpoint_s,
    evaluation_s,
    wall_s - coalesce(attributed_s, 0) AS unattributed_s,
    phases,
    trajectories,
    trained_tokens,
    computed_tokens,
    loss,
    grad_norm,
    metrics
FROM step_completed
LEFT JOIN by_phase USING (event_id);
