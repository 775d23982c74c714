SELECT known, count(*) AS votes, count(DISTINCT group_id) AS groups
FROM contamination
WHERE run_id = $run_id AND rule_set IS NOT DISTINCT FROM $rule_set
GROUP BY known
UNION ALL
SELECT 'fabricated_zero', count(*), count(DISTINCT group_id)
FROM fabricated_zero WHERE run_id = $run_id
ORDER BY known
