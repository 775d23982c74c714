-- One row per run, rule set of the decision, and what became of decided attempts: taken, or dropped
-- or excluded for one reason. How each differs from what was taken shows what the choice favours.
CREATE OR REPLACE VIEW selection AS
WITH chosen AS (
    SELECT
        run_id,
        rule_set,
        trajectory_id,
        CASE
            WHEN state IN ('trained', 'retrained', 'decided', 'masked', 'evaluated') THEN 'taken'
            ELSE waste_reason
        END AS reason
    FROM trajectory_uses WHERE rule_set IS NOT NULL
),
started AS (
    SELECT run_id, trajectory_id, min(occurred_at) AS started_at
    FROM trajectory_started GROUP BY run_id, trajectory_id
),
finished AS (
    SELECT run_id, trajectory_id, max(occurred_at) AS finished_at
    FROM trajectory_finished GROUP BY run_id, trajectory_id
),
turned AS (
    SELECT run_id, trajectory_id, sum(completion_tokens) AS tokens
    FROM turn_completed GROUP BY run_id, trajectory_id
),
rewarded AS (
    SELECT run_id, trajectory_id, arg_max_null(value, log_offset) AS reward
    FROM reward_assigned GROUP BY run_id, trajectory_id
),
declared AS (
    SELECT run_id, arg_max(pass_threshold, log_offset) AS pass_threshold
    FROM run_declared GROUP BY run_id
),
counted AS (
    SELECT
        run_id,
        rule_set,
        reason,
        count(*) AS trajectories,
        count(tokens) AS with_tokens,
        avg(tokens) AS mean_tokens,
        count(started_at) FILTER (finished_at IS NOT NULL) AS timed,
        avg(date_diff('microsecond', started_at, finished_at) / 1e6) AS mean_s,
        count(*) FILTER (isfinite(reward) AND abs(reward) <= 1e100) AS scored,
        -- Null where nobody declared what passes.
        CASE
            WHEN max(pass_threshold) IS NOT NULL THEN count(*) FILTER (
                isfinite(reward) AND abs(reward) <= 1e100 AND reward >= pass_threshold
            )
        END AS passed
    FROM chosen
    LEFT JOIN started USING (run_id, trajectory_id)
    LEFT JOIN finished USING (run_id, trajectory_id)
    LEFT JOIN turned USING (run_id, trajectory_id)
    LEFT JOIN rewarded USING (run_id, trajectory_id)
    LEFT JOIN declared USING (run_id)
    GROUP BY run_id, rule_set, reason
)
SELECT
    run_id,
    rule_set,
    CASE WHEN reason = 'taken' THEN 'taken' ELSE 'dropped' END AS selection,
    reason,
    trajectories,
    trajectories / sum(trajectories) OVER one_run AS share,
    with_tokens,
    -- Generated, of those with tokens.
    mean_tokens,
    timed,
    -- From start to end, of those with both times.
    mean_s,
    scored,
    passed,
    -- Of those whose newest verdict is a reward.
    passed / nullif(scored, 0) AS pass_rate,
    mean_tokens / any_value(mean_tokens) FILTER (reason = 'taken') OVER one_run
        AS tokens_against_taken,
    mean_s / any_value(mean_s) FILTER (reason = 'taken') OVER one_run AS seconds_against_taken,
    passed / nullif(scored, 0)
    - any_value(passed / nullif(scored, 0)) FILTER (reason = 'taken') OVER one_run
        AS pass_rate_against_taken
FROM counted
WINDOW one_run AS (PARTITION BY run_id, rule_set);
