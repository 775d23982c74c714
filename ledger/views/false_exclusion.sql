-- One row per attempt that didn't vote though a rule set blames the policy for how it ended, and
-- that rule set: the mirror of contamination. What was excluded for another reason than blame is
-- listed too, with that reason.
CREATE OR REPLACE VIEW false_exclusion AS
WITH silent AS (
    SELECT * FROM members WHERE NOT votes
),
newest AS (
    SELECT
        run_id,
        group_id,
        trajectory_id,
        rule_set,
        arg_max(
            {'stage': cause_stage, 'class': cause_class, 'blame': blame}, log_offset
        ) AS cause
    FROM trajectory_judged
    SEMI JOIN silent USING (run_id, group_id, trajectory_id)
    GROUP BY run_id, group_id, trajectory_id, rule_set
),
said AS (
    SELECT
        run_id,
        group_id,
        trajectory_id,
        rule_set,
        'at_decision' AS known,
        {'stage': cause_stage, 'class': cause_class, 'blame': blame} AS cause
    FROM silent WHERE blame = 'policy'
    UNION ALL
    SELECT
        newest.run_id,
        newest.group_id,
        newest.trajectory_id,
        newest.rule_set,
        'late_evidence',
        newest.cause
    FROM newest
    JOIN silent USING (run_id, group_id, trajectory_id)
    WHERE newest.cause.blame = 'policy'
        AND NOT (
            newest.rule_set = silent.rule_set AND coalesce(silent.blame = 'policy', false)
        )
),
voters AS (
    SELECT
        run_id,
        group_id,
        count(*) AS voted,
        avg(reward) AS mean,
        list(DISTINCT slot) AS slots
    FROM members WHERE votes AND abs(reward) <= 1e100 GROUP BY run_id, group_id
)
SELECT
    run_id,
    group_id,
    silent.slot AS slot,
    trajectory_id,
    said.rule_set AS rule_set,
    silent.rule_set AS decision_rule_set,
    known,
    said.cause.stage AS cause_stage,
    said.cause.class AS cause_class,
    said.cause.blame AS blame,
    silent.exclusion_reason AS exclusion_reason,
    -- What the decision found for it; null: no reward, so that it could not have voted.
    silent.reward AS reward,
    silent.decision AS decision,
    -- Whether another attempt in the slot votes in its place.
    coalesce(list_contains(voters.slots, silent.slot), false) AS slot_voted,
    coalesce(voted, 0) AS votes,
    voters.mean AS mean_without,
    (coalesce(voters.mean, 0) * coalesce(voted, 0) + silent.reward)
    / (coalesce(voted, 0) + 1) AS mean_with
FROM said
JOIN silent USING (run_id, group_id, trajectory_id)
LEFT JOIN voters USING (run_id, group_id);
