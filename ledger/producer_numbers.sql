-- One row per incarnation of a producer: which numbers its facts have. Counts and sums tell whether
-- any is missing without putting them in order.
SELECT
    incarnation::UUID AS incarnation,
    any_value(producer) AS producer,
    min(run_id::UUID) AS first_run,
    max(run_id::UUID) AS last_run,
    max(log_time) AS last_log_time,
    max(producer_seq) AS last_seq,
    count(*) AS numbers,
    -- (Nobody has recorded as many facts as that; a foreign number must not overflow a sum.)
    sum(least(producer_seq, 1099511627776))::HUGEINT AS total,
    sum(least(producer_seq, 1099511627776)::HUGEINT * least(producer_seq, 1099511627776))
        AS squares
FROM facts
GROUP BY ALL
