-- One row per run: the share of its steps' rollout time that came after 90% of their attempts had
-- ended, as a ratio of sums.
SELECT
    run_id,
    printf('%d steps', any_value(steps_with_tail)) AS subject,
    any_value(tail_share_of_sums) AS value,
    NULL::BIGINT AS out_of
FROM rollout_tail_totals
WHERE tail_share_of_sums IS NOT NULL
GROUP BY run_id;
