FROM pass_at_1
WHERE (
        run_id = $run_id OR parent_run_id = $run_id
        OR (parent_run_id IS NULL AND run_id != $run_id)
    )
    AND ($asked_rule_set IS NULL OR rule_set IS NOT DISTINCT FROM $asked_rule_set)
QUALIFY
    rule_set IS NOT DISTINCT FROM max(rule_set) OVER (PARTITION BY run_id, policy_version)
ORDER BY policy_version, name, run_id
LIMIT 200
