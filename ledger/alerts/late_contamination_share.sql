-- One row per run and rule set: the share of votes whose attempts turned out, behind the decision, to
-- have been lost through no fault of the policy.
SELECT
    run_id,
    printf('rule set %d', rule_set) AS subject,
    count(DISTINCT trajectory_id) / any_value(votes) AS value,
    any_value(votes)::BIGINT AS out_of
FROM contamination
JOIN (SELECT run_id, sum(votes) AS votes FROM group_decisions GROUP BY run_id) USING (run_id)
WHERE known = 'late_evidence'
GROUP BY run_id, rule_set;
