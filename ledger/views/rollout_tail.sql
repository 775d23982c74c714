-- One row per step that attempts were sampled for, and rule set: the tail of its rollouts, which is
-- what came after 90% of the attempts had ended; of all, and of the trainable ones among themselves.
CREATE OR REPLACE VIEW rollout_tail AS
WITH rule_sets AS (
    SELECT DISTINCT run_id, rule_set FROM trajectory_judged
),
judged AS (
    SELECT run_id, trajectory_id, rule_set, arg_max(trainable, log_offset) AS trainable
    FROM trajectory_judged GROUP BY run_id, trajectory_id, rule_set
),
listed AS (
    SELECT group_id, log_offset AS last_offset, unnest(members) AS member FROM group_decided
),
voted AS (
    SELECT group_id, member.trajectory_id::UUID AS trajectory_id, member.votes AS votes
    FROM listed
    JOIN (SELECT group_id, last_offset FROM group_decisions) USING (group_id, last_offset)
),

-- Trainable ones among themselves.
trainable_counted AS (
    SELECT
        run_id,
        step,
        rule_set,
        count(*) AS trainable,
        min(started_at) AS started_at,
        list(alive_until ORDER BY alive_until) FILTER (state = 'ended') AS ends,
        max(alive_until) AS last_end,
        count(*) FILTER (alive_until IS NULL) AS open_ended
    FROM step_attempts
    JOIN judged USING (run_id, trajectory_id)
    WHERE trainable
    GROUP BY run_id, step, rule_set
),
trainable_placed AS (
    SELECT
        *,
        (trainable + 1) // 2 AS n50,
        (9 * trainable + 9) // 10 AS n90,
        (99 * trainable + 99) // 100 AS n99
    FROM trainable_counted
),
of_trainable AS (
    SELECT
        run_id,
        step,
        rule_set,
        trainable,
        CASE WHEN n50 < trainable THEN date_diff('microsecond', started_at, ends[n50]) END / 1e6
            AS trainable_t50_s,
        CASE WHEN n90 < trainable THEN date_diff('microsecond', started_at, ends[n90]) END / 1e6
            AS trainable_t90_s,
        CASE WHEN n99 < trainable THEN date_diff('microsecond', started_at, ends[n99]) END / 1e6
            AS trainable_t99_s,
        CASE WHEN open_ended = 0 THEN date_diff('microsecond', started_at, last_end) END / 1e6
            AS trainable_t_end_s
    FROM trainable_placed
),

-- Who was alive in the tail, in seconds after the step's start.
alive AS (
    SELECT
        run_id,
        step,
        rule_set,
        greatest(t90_s, date_diff('microsecond', steps.started_at, attempts.started_at) / 1e6)
            AS since_s,
        date_diff('microsecond', steps.started_at, alive_until) / 1e6 AS until_s,
        -- What a decision said counts; where nobody decided, the judgement.
        coalesce(votes, NOT decided, trainable) AS counts
    FROM step_attempts AS attempts
    JOIN rollout_quantiles AS steps USING (run_id, step)
    LEFT JOIN rule_sets USING (run_id)
    LEFT JOIN (SELECT group_id, true AS decided FROM group_decisions) USING (group_id)
    LEFT JOIN voted USING (group_id, trajectory_id)
    LEFT JOIN judged USING (run_id, trajectory_id, rule_set)
    WHERE t_end_s IS NOT NULL
        AND date_diff('microsecond', steps.started_at, alive_until) / 1e6 > t90_s
),
reached AS (
    SELECT
        *,
        max(until_s) OVER earlier AS covered_s,
        max(until_s) FILTER (counts) OVER earlier AS counting_covered_s
    FROM alive
    WINDOW earlier AS (
        PARTITION BY run_id, step, rule_set ORDER BY since_s, until_s
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
in_tail AS (
    SELECT
        run_id,
        step,
        rule_set,
        sum(until_s - since_s) AS attempt_s,
        sum(greatest(0, until_s - greatest(since_s, coalesce(covered_s, since_s)))) AS anyone_s,
        coalesce(
            sum(greatest(0, until_s - greatest(since_s, coalesce(counting_covered_s, since_s))))
                FILTER (counts),
            0
        ) AS counting_s,
        count(*) FILTER (counts IS NULL) AS unknown
    FROM reached GROUP BY run_id, step, rule_set
),
waited AS (
    SELECT
        run_id,
        step,
        group_id,
        -- Null while one of them is in flight.
        CASE
            WHEN count(alive_until) = count(*)
                THEN (count(*) * max(epoch_us(alive_until)) - sum(epoch_us(alive_until))) / 1e6
        END AS wait_s
    FROM step_attempts GROUP BY run_id, step, group_id
),
group_waits AS (
    SELECT
        run_id,
        step,
        CASE WHEN count(wait_s) = count(*) THEN sum(wait_s) END AS group_wait_s
    FROM waited GROUP BY run_id, step
)
SELECT
    steps.run_id,
    steps.step,
    rule_sets.rule_set,
    steps.started_at,
    trajectories,
    ended,
    censored,
    in_flight,
    t50_s,
    t90_s,
    t99_s,
    t_end_s,
    t_end_s - t90_s AS tail_s,
    (t_end_s - t90_s) / nullif(t_end_s, 0) AS tail_share,
    attempt_s / nullif(t_end_s - t90_s, 0) AS tail_in_flight_mean,
    -- Of the tail, while only attempts were alive that don't vote.
    CASE WHEN unknown = 0 THEN anyone_s - counting_s END AS failed_tail_s,
    late_start_s,
    last_start_s,
    -- Attempts' seconds between their end and that of the last of their group.
    group_wait_s,
    CASE WHEN rule_sets.rule_set IS NOT NULL THEN coalesce(trainable, 0) END AS trainable,
    -- After the first start of a trainable one.
    trainable_t50_s,
    trainable_t90_s,
    trainable_t99_s,
    trainable_t_end_s,
    trainable_t_end_s - trainable_t90_s AS trainable_tail_s,
    (trainable_t_end_s - trainable_t90_s) / nullif(trainable_t_end_s, 0) AS trainable_tail_share
FROM rollout_quantiles AS steps
LEFT JOIN rule_sets USING (run_id)
LEFT JOIN of_trainable USING (run_id, step, rule_set)
LEFT JOIN in_tail
    ON in_tail.run_id = steps.run_id
    AND in_tail.step = steps.step
    AND in_tail.rule_set IS NOT DISTINCT FROM rule_sets.rule_set
LEFT JOIN group_waits
    ON group_waits.run_id = steps.run_id AND group_waits.step = steps.step;
