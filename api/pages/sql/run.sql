SELECT
    runs.* EXCLUDE (configuration),
    (
        SELECT coalesce(list(DISTINCT rule_set ORDER BY rule_set), [])
        FROM trajectory_judged WHERE run_id = $run_id
    ) AS rule_sets,
    (SELECT count(*) FROM producers WHERE run_id = $run_id) AS producers,
    (SELECT count(*) FROM producers WHERE run_id = $run_id AND state = 'open') AS producers_open,
    (
        SELECT max(coalesce(closed_at, last_alive_at)) FROM producers WHERE run_id = $run_id
    ) AS last_alive_at,
    (
        SELECT max(unseen_until) FROM producers WHERE run_id = $run_id AND state = 'open'
    ) AS unseen_until
FROM runs WHERE run_id = $run_id
