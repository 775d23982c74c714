FROM failures
WHERE run_id = $run_id AND rule_set IS NOT DISTINCT FROM $rule_set
ORDER BY failures DESC, stage, class, blame
LIMIT 200
