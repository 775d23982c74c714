SELECT
    lag_in_flight,
    lag_in_queue,
    count(*) AS trajectories,
    max(consumed_version) AS newest_version,
    sum(turns_unversioned) AS turns_unversioned
FROM policy_lag WHERE run_id = $run_id
GROUP BY lag_in_flight, lag_in_queue
ORDER BY lag_in_flight, lag_in_queue
LIMIT 500
