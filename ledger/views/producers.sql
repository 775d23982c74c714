-- One row per incarnation of a producer: what it said of itself, and whether it ended well.
CREATE OR REPLACE VIEW producers AS
WITH spoken AS (
    SELECT
        incarnation, producer, run_id, occurred_at, accepted, last_seq, interval_s, false AS last
    FROM producer_alive
    UNION ALL
    SELECT incarnation, producer, run_id, occurred_at, accepted, last_seq, NULL, true
    FROM producer_closed
),
lost AS (
    SELECT incarnation, sum(count) AS lost FROM producer_lost GROUP BY incarnation
),
summed AS (
    SELECT
        any_value(producer) AS producer,
        incarnation,
        any_value(run_id) AS run_id,
        bool_or(last) AS closed,
        min(occurred_at) AS first_alive_at,
        max(occurred_at) FILTER (NOT last) AS last_alive_at,
        max(occurred_at) FILTER (last) AS closed_at,
        arg_max(interval_s, occurred_at) AS interval_s,
        max(accepted) AS accepted,
        max(last_seq) AS last_seq
    FROM spoken GROUP BY incarnation
)
SELECT
    producer,
    incarnation,
    run_id,
    CASE WHEN closed THEN 'closed' ELSE 'open' END AS state,
    first_alive_at,
    last_alive_at,
    closed_at,
    -- While it is open: what it recorded up to here, and after the last pulse, may be unseen.
    -- (An interval of over a year is a foreign writer's mistake, and null.)
    CASE
        WHEN NOT closed AND interval_s BETWEEN 0 AND 31536000
            THEN last_alive_at + to_seconds(interval_s)
    END AS unseen_until,
    accepted,
    last_seq,
    coalesce(lost, 0) AS lost
FROM summed
LEFT JOIN lost USING (incarnation);
