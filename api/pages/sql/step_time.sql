FROM (
    FROM step_time WHERE run_id = $run_id ORDER BY started_at DESC, step DESC LIMIT 50
)
ORDER BY started_at, step
