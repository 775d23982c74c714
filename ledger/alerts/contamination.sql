-- One row per run: attempts that voted although the decision knew that they were lost through no
-- fault of the policy, of all votes.
SELECT
    run_id,
    printf('groups %s', string_agg(DISTINCT group_id::VARCHAR, ', ')) AS subject,
    count(DISTINCT trajectory_id)::DOUBLE AS value,
    any_value(votes)::BIGINT AS out_of
FROM contamination
JOIN (SELECT run_id, sum(votes) AS votes FROM group_decisions GROUP BY run_id) USING (run_id)
WHERE known = 'at_decision'
GROUP BY run_id;
