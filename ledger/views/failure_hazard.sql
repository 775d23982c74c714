-- One row per run, rule set and stage, and one for the whole attempt (stage `all`): failures that
-- weren't the policy's per hour at risk. Where longer attempts are lost more often, those that are
-- left pass more often than all would have: `all` says how much, if attempts are lost at one rate.
CREATE OR REPLACE VIEW failure_hazard AS
WITH spent AS (
    SELECT run_id, 'queue' AS stage, queue_s AS seconds FROM trajectory_started
    UNION ALL
    SELECT run_id, 'sandbox_start', start_s FROM sandbox_started
    UNION ALL
    SELECT run_id, 'setup', setup_s FROM sandbox_prepared
    UNION ALL
    SELECT run_id, stage, seconds FROM sandbox_failed WHERE stage IN ('sandbox_start', 'setup')
    UNION ALL
    SELECT run_id, 'model', client_s FROM turn_completed
    UNION ALL
    SELECT run_id, 'model', seconds FROM turn_failed
    UNION ALL
    SELECT run_id, 'tool', wall_s FROM tool_call_completed
    UNION ALL
    SELECT run_id, 'verify', verify_s FROM reward_assigned
),
started AS (
    SELECT run_id, trajectory_id, min(occurred_at) AS started_at
    FROM trajectory_started GROUP BY run_id, trajectory_id
),
finished AS (
    SELECT run_id, trajectory_id, max(occurred_at) AS finished_at
    FROM trajectory_finished GROUP BY run_id, trajectory_id
),
rewarded AS (
    SELECT run_id, trajectory_id, arg_max_null(value, log_offset) AS reward
    FROM reward_assigned GROUP BY run_id, trajectory_id
),
declared AS (
    SELECT run_id, arg_max(pass_threshold, log_offset) AS pass_threshold
    FROM run_declared GROUP BY run_id
),
attempts AS (
    SELECT
        run_id,
        rule_set,
        cause_stage,
        coalesce(blame <> 'policy', false) AS lost,
        date_diff('microsecond', started_at, finished_at) / 3.6e9 AS hours,
        CASE
            WHEN isfinite(reward) AND abs(reward) <= 1e100 THEN reward >= pass_threshold
        END AS passed
    FROM judgements
    LEFT JOIN started USING (run_id, trajectory_id)
    LEFT JOIN finished USING (run_id, trajectory_id)
    LEFT JOIN rewarded USING (run_id, trajectory_id)
    LEFT JOIN declared USING (run_id)
),
at_risk AS (
    SELECT
        run_id,
        stage,
        sum(seconds) / 3600 AS active_hours,
        count(*) FILTER (seconds IS NULL) AS untimed
    FROM spent GROUP BY run_id, stage
),
stages AS (
    SELECT run_id, rule_set, stage, active_hours, untimed
    FROM (SELECT DISTINCT run_id, rule_set FROM attempts)
    JOIN at_risk USING (run_id)
    UNION ALL
    SELECT run_id, rule_set, 'all', sum(hours), count(*) FILTER (hours IS NULL)
    FROM attempts GROUP BY run_id, rule_set
),
lost AS (
    SELECT
        run_id,
        rule_set,
        coalesce(cause_stage, 'unknown') AS stage,
        count(*) AS lost
    FROM attempts WHERE lost GROUP BY run_id, rule_set, cause_stage
    UNION ALL
    SELECT run_id, rule_set, 'all', count(*) FROM attempts WHERE lost GROUP BY run_id, rule_set
),
errors AS (
    SELECT
        run_id,
        rule_set,
        CASE WHEN grouping(stage) = 1 THEN 'all' ELSE coalesce(stage, 'unknown') END AS stage,
        sum(failures) AS failures
    FROM failure_counts WHERE blame <> 'policy'
    GROUP BY GROUPING SETS ((run_id, rule_set, stage), (run_id, rule_set))
),
hazards AS (
    SELECT
        run_id,
        rule_set,
        stage,
        active_hours,
        untimed,
        coalesce(failures, 0) AS failures,
        coalesce(lost, 0) AS lost,
        coalesce(failures, 0) / nullif(active_hours, 0) AS failures_per_hour,
        coalesce(lost, 0) / nullif(active_hours, 0) AS lost_per_hour
    FROM stages
    FULL JOIN lost USING (run_id, rule_set, stage)
    LEFT JOIN errors USING (run_id, rule_set, stage)
),
-- A survivor stands for those like it that were lost: 1 / e^(-hazard x hours) of them.
survived AS (
    SELECT
        run_id,
        rule_set,
        any_value(hazards.stage) AS stage,
        count(*) AS attempts,
        count(*) FILTER (NOT attempts.lost) AS survivors,
        count(*) FILTER (NOT attempts.lost AND passed IS NULL) AS survivors_unscored,
        count(*) FILTER (NOT attempts.lost AND passed) AS passed,
        sum(exp(least(lost_per_hour * hours, 700))) FILTER (NOT attempts.lost AND passed)
        / nullif(
            sum(exp(least(lost_per_hour * hours, 700)))
                FILTER (NOT attempts.lost AND passed IS NOT NULL),
            0
        ) AS pass_rate_reweighted
    FROM attempts
    JOIN hazards USING (run_id, rule_set)
    WHERE hazards.stage = 'all'
    GROUP BY run_id, rule_set
)
SELECT
    run_id,
    rule_set,
    stage,
    -- Known seconds at the stage, tries that failed included; `all`: from start to end.
    active_hours,
    untimed,
    -- Tries that failed, made again or not.
    failures,
    failures_per_hour,
    -- Attempts that ended so.
    lost,
    lost_per_hour,
    -- From here on for `all` only.
    attempts,
    lost / nullif(attempts, 0) AS lost_share,
    survivors,
    survivors_unscored,
    passed,
    passed / nullif(survivors - survivors_unscored, 0) AS pass_rate,
    pass_rate_reweighted
FROM hazards
LEFT JOIN survived USING (run_id, rule_set, stage);
