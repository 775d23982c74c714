-- One row per slot of an evaluation run and rule set: the outcome of its first valid attempt, never
-- of its best one; where no attempt is valid the slot is missing, which is not failed.
CREATE OR REPLACE VIEW slot_outcomes AS
WITH rule_sets AS (
    SELECT DISTINCT run_id, rule_set, pass_threshold, parent_policy_version FROM evaluations
),
slots AS (
    SELECT
        run_id,
        group_id,
        task_id,
        policy_version,
        -- No group is that large; one that claims to be must not fill the memory.
        unnest(range(least(expected_size, 10000))) AS slot
    FROM opened_groups
),
told AS (
    SELECT
        run_id,
        group_id,
        slot,
        trajectory_id,
        {'at': coalesce(occurred_at, '-infinity'), 'event_id': event_id} AS start,
        occurred_at AS started_at,
        NULL AS ended_at,
        false AS has_ended
    FROM trajectory_started
    UNION ALL
    SELECT run_id, group_id, slot, trajectory_id, NULL, NULL, occurred_at, true
    FROM trajectory_finished
),
attempts AS (
    SELECT
        run_id,
        trajectory_id,
        min(group_id) AS group_id,
        min(slot) AS slot,
        min(start) AS start,
        min(started_at) AS started_at,
        max(ended_at) AS ended_at,
        bool_or(has_ended) AS has_ended
    FROM told GROUP BY run_id, trajectory_id
),
-- A re-score is another fact: the newest verifier version counts, also where it gave no verdict.
rewarded AS (
    SELECT
        run_id,
        trajectory_id,
        arg_max(
            {'value': value, 'verifier': verifier, 'version': verifier_version}, log_offset
        ) AS score
    FROM reward_assigned GROUP BY run_id, trajectory_id
),
judged AS (
    SELECT
        run_id,
        trajectory_id,
        rule_set,
        arg_max(
            {'trainable': trainable, 'cause_class': cause_class, 'blame': blame}, log_offset
        ) AS verdict
    FROM trajectory_judged GROUP BY run_id, trajectory_id, rule_set
),
said AS (
    SELECT
        slots.run_id,
        rule_sets.rule_set,
        slots.group_id,
        slots.slot,
        coalesce(parent_policy_version, slots.policy_version) AS policy_version,
        slots.policy_version AS submitted_version,
        slots.task_id,
        attempts.trajectory_id,
        start,
        started_at,
        ended_at,
        score.value AS reward,
        score.verifier AS verifier,
        score.version AS verifier_version,
        verdict.trainable AS trainable,
        verdict.cause_class AS cause_class,
        verdict.blame AS blame,
        -- DuckDB takes nan for the largest number there is.
        isfinite(reward) AND abs(reward) <= 1e100 AS usable,
        usable AND reward >= pass_threshold AS passes,
        CASE
            WHEN attempts.trajectory_id IS NULL THEN 'never_started'
            WHEN trainable IS NULL AND NOT has_ended THEN 'in_flight'
            WHEN trainable IS NULL THEN 'unjudged'
            WHEN NOT trainable AND cause_class = 'no_activity' THEN 'no_activity'
            WHEN NOT trainable AND blame IS DISTINCT FROM 'policy' AND blame IS NOT NULL THEN blame
            WHEN NOT trainable OR NOT coalesce(usable, false) THEN 'reward_missing'
        END AS invalid_reason
    FROM slots
    JOIN rule_sets ON rule_sets.run_id = slots.run_id
    LEFT JOIN attempts ON attempts.run_id = slots.run_id
        AND attempts.group_id = slots.group_id AND attempts.slot = slots.slot
    LEFT JOIN rewarded ON rewarded.run_id = slots.run_id
        AND rewarded.trajectory_id = attempts.trajectory_id
    LEFT JOIN judged ON judged.run_id = slots.run_id
        AND judged.trajectory_id = attempts.trajectory_id AND judged.rule_set = rule_sets.rule_set
),
-- In the order of their start; one whose start isn't known comes last, as when groups are decided.
ordered AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY run_id, group_id, slot, rule_set ORDER BY start NULLS LAST, trajectory_id
        ) AS attempt_no
    FROM said
),
first_valid AS (
    SELECT
        *,
        invalid_reason NOT IN ('never_started', 'in_flight', 'unjudged') AS is_excluded,
        min(attempt_no) FILTER (invalid_reason IS NULL)
            OVER (PARTITION BY run_id, group_id, slot, rule_set) AS counts_no
    FROM ordered
)
SELECT
    run_id,
    rule_set,
    min(policy_version) AS policy_version,
    min(submitted_version) AS submitted_version,
    min(task_id) AS task_id,
    group_id,
    slot,
    count(trajectory_id) AS attempts,
    -- The attempt that counts; null, as its reward and whether it passed, while the slot is missing.
    any_value(trajectory_id) FILTER (attempt_no = counts_no) AS trajectory_id,
    any_value(reward) FILTER (attempt_no = counts_no) AS reward,
    any_value(passes) FILTER (attempt_no = counts_no) AS passed,
    any_value(verifier) FILTER (attempt_no = counts_no) AS verifier,
    any_value(verifier_version) FILTER (attempt_no = counts_no) AS verifier_version,
    -- Why the slot is missing, by its last attempt; null when it isn't.
    CASE
        WHEN any_value(counts_no) IS NULL THEN arg_max(invalid_reason, attempt_no)
    END AS missing_reason,
    -- Ended attempts that don't count: behind the one that does, and those that aren't valid.
    count(*) FILTER (invalid_reason IS NULL AND attempt_no > counts_no) AS superseded,
    count(*) FILTER (is_excluded) AS excluded,
    -- Those of them that had a passing reward.
    count(*) FILTER (is_excluded AND passes) AS excluded_passes,
    min(started_at) AS first_started_at,
    max(ended_at) AS last_ended_at
FROM first_valid
GROUP BY run_id, rule_set, group_id, slot;
