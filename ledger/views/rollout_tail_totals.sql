-- One row per run and rule set: the tail over all its steps, as a ratio of sums, in which long steps
-- count for more, and as a mean of ratios. Steps without a tail_share count in neither.
CREATE OR REPLACE VIEW rollout_tail_totals AS
SELECT
    run_id,
    rule_set,
    count(*) AS steps,
    count(tail_share) AS steps_with_tail,
    sum(tail_s) FILTER (tail_share IS NOT NULL) AS tail_s,
    sum(t_end_s) FILTER (tail_share IS NOT NULL) AS rollout_s,
    sum(tail_s) FILTER (tail_share IS NOT NULL) / sum(t_end_s) FILTER (tail_share IS NOT NULL)
        AS tail_share_of_sums,
    avg(tail_share) AS tail_share_mean,
    sum(failed_tail_s) AS failed_tail_s,
    count(trainable_tail_share) AS steps_with_trainable_tail,
    sum(trainable_tail_s) FILTER (trainable_tail_share IS NOT NULL) AS trainable_tail_s,
    sum(trainable_t_end_s) FILTER (trainable_tail_share IS NOT NULL) AS trainable_rollout_s,
    sum(trainable_tail_s) FILTER (trainable_tail_share IS NOT NULL)
    / sum(trainable_t_end_s) FILTER (trainable_tail_share IS NOT NULL)
        AS trainable_tail_share_of_sums,
    avg(trainable_tail_share) AS trainable_tail_share_mean
FROM rollout_tail GROUP BY run_id, rule_set;
