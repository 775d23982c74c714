FROM (
    FROM low_occupancy WHERE run_id = $run_id ORDER BY hour DESC, span DESC LIMIT 48
)
ORDER BY hour, span
