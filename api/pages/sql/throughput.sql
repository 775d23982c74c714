FROM throughput
WHERE run_id = $run_id AND rule_set IS NOT DISTINCT FROM $rule_set
ORDER BY span
