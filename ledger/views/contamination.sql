-- One row per attempt that was lost to the infrastructure, the verifier or the scheduler and voted
-- all the same, and rule set that says so, with its group's advantages as decided and without such
-- attempts. Those `at_decision` must not be: the decision knew. `late_evidence` came behind it.
CREATE OR REPLACE VIEW contamination AS
WITH votes AS (
    SELECT * FROM contaminated_votes
),
together AS (
    SELECT
        run_id,
        group_id,
        rule_set,
        count(*) FILTER (contaminates) AS contaminating,
        list(slot ORDER BY slot, trajectory_id) AS slots,
        list(reward ORDER BY slot, trajectory_id) AS rewards,
        list(advantage_with ORDER BY slot, trajectory_id) AS advantages_with,
        list(advantage_without ORDER BY slot, trajectory_id) AS advantages_without
    FROM votes GROUP BY run_id, group_id, rule_set
)
SELECT
    run_id,
    step,
    batch_id,
    group_id,
    slot,
    trajectory_id,
    rule_set,
    decision_rule_set,
    known,
    cause_stage,
    cause_class,
    blame,
    reward,
    decision,
    algorithm,
    advantage_with AS advantage,
    contaminating,
    votes_with,
    votes_without,
    mean_with,
    mean_without,
    std_with,
    std_without,
    -- (votes_with,) each, by slot: null without is what would not have voted, or a group dropped.
    slots,
    rewards,
    advantages_with,
    advantages_without,
    would_be_dropped
FROM votes
JOIN together USING (run_id, group_id, rule_set)
WHERE contaminates;
