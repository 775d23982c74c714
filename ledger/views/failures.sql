-- One row per run, rule set, stage, class and blame: how often that failed, in what shares, and
-- what it cost: the failing tries themselves, and all that went into the attempts it ended.
CREATE OR REPLACE VIEW failures AS
WITH ended AS (
    SELECT run_id, rule_set, trajectory_id, cause_stage AS stage, cause_class AS class, blame
    FROM judgements WHERE cause_class IS NOT NULL
),
lived AS (
    SELECT
        run_id,
        trajectory_id,
        date_diff(
            'microsecond', min(started.occurred_at), max(finished.occurred_at)
        ) / 1e6 AS wall_s
    FROM trajectory_started AS started
    JOIN trajectory_finished AS finished USING (run_id, trajectory_id)
    GROUP BY run_id, trajectory_id
),
turned AS (
    SELECT
        run_id,
        trajectory_id,
        sum(completion_tokens) AS generated_tokens,
        sum(prompt_tokens::HUGEINT - coalesce(cached_tokens, 0)) AS prefilled_tokens
    FROM turn_completed GROUP BY run_id, trajectory_id
),
costs AS (
    SELECT
        run_id,
        rule_set,
        stage,
        class,
        blame,
        sum(wall_s) AS ended_s,
        sum(generated_tokens) AS ended_generated_tokens,
        sum(prefilled_tokens) AS ended_prefilled_tokens,
        sum(gpu_s) AS ended_gpu_s,
        sum(gpu_s_by_tokens) AS ended_gpu_s_by_tokens
    FROM ended
    LEFT JOIN lived USING (run_id, trajectory_id)
    LEFT JOIN turned USING (run_id, trajectory_id)
    LEFT JOIN gpu_shares USING (run_id, trajectory_id)
    GROUP BY run_id, rule_set, stage, class, blame
)
SELECT
    failure_counts.*,
    -- Of the attempts that this ended, from start to end: null where there are none, or where
    -- nobody knows; GPU-seconds also while no engine GPUs are declared.
    ended_s,
    ended_generated_tokens,
    ended_prefilled_tokens,
    ended_gpu_s,
    ended_gpu_s_by_tokens
FROM failure_counts
LEFT JOIN costs
    ON costs.run_id = failure_counts.run_id
    AND costs.rule_set = failure_counts.rule_set
    AND costs.stage IS NOT DISTINCT FROM failure_counts.stage
    AND costs.class = failure_counts.class
    AND costs.blame IS NOT DISTINCT FROM failure_counts.blame;
