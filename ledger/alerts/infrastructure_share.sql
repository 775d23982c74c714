-- One row per run and rule set: the share of judged attempts that ended by a failure of the
-- infrastructure.
SELECT
    run_id,
    printf('rule set %d', rule_set) AS subject,
    sum(trajectories_ended) / any_value(trajectories_judged) AS value,
    any_value(trajectories_judged)::BIGINT AS out_of
FROM failure_counts
WHERE blame = 'infrastructure'
GROUP BY run_id, rule_set;
