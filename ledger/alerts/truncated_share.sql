-- One row per run and rule set: the share of judged attempts that ran into a cap.
SELECT
    run_id,
    printf('rule set %d', rule_set) AS subject,
    count(*) FILTER (outcome = 'truncated') / count(*) AS value,
    count(*) AS out_of
FROM judgements
GROUP BY run_id, rule_set;
