-- One row per opened group: who tries what, what its slots have come to, and its last decision.
CREATE OR REPLACE VIEW groups AS
SELECT
    opened_groups.run_id,
    opened_groups.group_id,
    opened_groups.task_id,
    opened_groups.opened_at,
    opened_groups.target_step,
    opened_groups.policy_version AS opened_version,
    opened_groups.expected_size,
    balance.step,
    balance.batch_id,
    decision,
    drop_reason,
    first_decision,
    decisions,
    members,
    votes,
    mean,
    std,
    algorithm,
    rule_set,
    decisions.policy_version AS decided_version,
    decided_at,
    balance.* EXCLUDE (run_id, step, group_id, task_id, batch_id, expected_size)
FROM opened_groups
LEFT JOIN slot_balance AS balance USING (group_id)
LEFT JOIN group_decisions AS decisions ON decisions.group_id = opened_groups.group_id;
