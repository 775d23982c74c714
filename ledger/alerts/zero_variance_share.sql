-- One row per training run: the share of decided groups without a gradient, since all their votes
-- have one reward.
SELECT
    run_id,
    'decided groups' AS subject,
    count(*) FILTER (drop_reason = 'zero_variance') / count(*) AS value,
    count(*) AS out_of
FROM group_decisions
JOIN runs USING (run_id)
WHERE kind = 'train'
GROUP BY run_id;
