FROM capacity
WHERE run_id = $run_id
QUALIFY minute > max(minute) OVER () - INTERVAL 180 MINUTE
ORDER BY minute DESC, kind, resource
