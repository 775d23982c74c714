FROM (
    FROM rollout_tail
    WHERE run_id = $run_id AND rule_set IS NOT DISTINCT FROM $rule_set
    ORDER BY step DESC LIMIT 200
)
ORDER BY step
