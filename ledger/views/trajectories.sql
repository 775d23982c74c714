-- One row per attempt, with its outcome so far: in flight until it finishes, unjudged until a
-- rule set spoke, reward null until a verifier gave one.
CREATE OR REPLACE VIEW trajectories AS
WITH known AS (
    SELECT run_id, group_id, slot, trajectory_id FROM trajectory_started
    UNION SELECT run_id, group_id, slot, trajectory_id FROM trajectory_finished
    UNION SELECT run_id, group_id, slot, trajectory_id FROM trajectory_judged
),
started AS (
    SELECT
        trajectory_id,
        any_value(task_id) AS task_id,
        any_value(replaces) AS replaces,
        min(occurred_at) AS started_at,
        any_value(queue_s) AS queue_s
    FROM trajectory_started GROUP BY trajectory_id
),
finished AS (
    SELECT
        trajectory_id,
        max(occurred_at) AS finished_at,
        any_value(stop_reason) AS stop_reason,
        any_value(stage) AS ended_in_stage,
        any_value(error_type) AS error_type,
        any_value(policy_clock_s) AS policy_clock_s,
        any_value(reward_due) AS reward_due,
        any_value(turns_completed) AS turns_declared,
        any_value(tool_calls) AS tool_calls_declared,
        any_value(foreign_status) AS foreign_status,
        any_value(foreign_calls) AS foreign_calls,
        any_value(foreign_prompt_tokens) AS foreign_prompt_tokens,
        any_value(foreign_cached_tokens) AS foreign_cached_tokens,
        any_value(foreign_completion_tokens) AS foreign_completion_tokens,
        any_value(foreign_cost_usd) AS foreign_cost_usd
    FROM trajectory_finished GROUP BY trajectory_id
),
-- A re-score is another fact: the newest one counts.
rewarded AS (
    SELECT trajectory_id, value AS reward, verifier, verifier_version, tests_passed, tests_failed
    FROM reward_assigned
    QUALIFY row_number()
        OVER (PARTITION BY trajectory_id ORDER BY log_time DESC, log_offset DESC) = 1
),
-- Of several rule sets the one by which the group was decided; where it isn't, the first. A rule
-- set that is only compared with must not become the one that is seen.
decided AS (
    SELECT group_id, arg_max(rule_set, log_offset) AS decided_by FROM group_decided GROUP BY group_id
),
judged AS (
    SELECT trajectory_id, rule_set, outcome, cause_stage, cause_class, blame, trainable
    FROM trajectory_judged
    LEFT JOIN decided USING (group_id)
    QUALIFY row_number() OVER (
        PARTITION BY trajectory_id
        ORDER BY rule_set IS DISTINCT FROM decided_by, rule_set, log_time DESC, log_offset DESC
    ) = 1
),
turned AS (
    SELECT
        trajectory_id,
        count(*) AS turns,
        sum(prompt_tokens) AS prompt_tokens,
        sum(cached_tokens) AS cached_tokens,
        sum(completion_tokens) AS completion_tokens,
        sum(cost_usd) AS cost_usd,
        sum(client_s) AS model_s,
        max(prompt_tokens::HUGEINT + completion_tokens) AS longest_context_tokens
    FROM turn_completed GROUP BY trajectory_id
),
failed AS (
    SELECT trajectory_id, count(*) AS turns_failed FROM turn_failed GROUP BY trajectory_id
),
called AS (
    SELECT trajectory_id, count(*) AS tool_calls, sum(wall_s) AS tool_s
    FROM tool_call_completed GROUP BY trajectory_id
)
SELECT
    run_id,
    known.group_id,
    known.slot,
    trajectory_id,
    task_id,
    CASE WHEN stop_reason IS NULL THEN 'in_flight' ELSE 'finished' END AS state,
    stop_reason,
    ended_in_stage,
    error_type,
    foreign_status,
    reward,
    -- What is no reward passes nothing: DuckDB takes nan for the largest number there is.
    CASE
        WHEN isfinite(reward) AND abs(reward) <= 1e100 THEN reward >= pass_threshold
    END AS passed,
    reward_due,
    verifier,
    verifier_version,
    tests_passed,
    tests_failed,
    rule_set,
    outcome,
    cause_stage,
    cause_class,
    blame,
    trainable,
    replaces,
    started_at,
    finished_at,
    date_diff('microsecond', started_at, finished_at) / 1e6 AS wall_s,
    queue_s,
    policy_clock_s,
    coalesce(turns, 0) AS turns,
    coalesce(failed.turns_failed, 0) AS turns_failed,
    coalesce(tool_calls, 0) AS tool_calls,
    -- Declared at the end, so that a reader knows when it has them all.
    turns_declared,
    tool_calls_declared,
    -- An importer that knows no turns may still know their total.
    coalesce(prompt_tokens, foreign_prompt_tokens) AS prompt_tokens,
    coalesce(cached_tokens, foreign_cached_tokens) AS cached_tokens,
    coalesce(completion_tokens, foreign_completion_tokens) AS completion_tokens,
    coalesce(cost_usd, foreign_cost_usd) AS cost_usd,
    foreign_calls,
    longest_context_tokens,
    model_s,
    tool_s
FROM known
LEFT JOIN started USING (trajectory_id)
LEFT JOIN finished USING (trajectory_id)
LEFT JOIN rewarded USING (trajectory_id)
LEFT JOIN judged USING (trajectory_id)
LEFT JOIN turned USING (trajectory_id)
LEFT JOIN failed USING (trajectory_id)
LEFT JOIN called USING (trajectory_id)
LEFT JOIN (SELECT run_id, pass_threshold FROM runs) USING (run_id);
