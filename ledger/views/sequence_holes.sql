-- One row per stretch of numbers of a producer's incarnation that the book doesn't have. Numbers up
-- to the last one that the producer spoke of are due; what it never spoke of is its unseen tail.
CREATE OR REPLACE VIEW sequence_holes AS
WITH have AS (
    SELECT incarnation, producer_seq AS first_seq, producer_seq AS last_seq FROM facts
    UNION ALL
    SELECT incarnation, producer_seq, producer_seq FROM duplicates
    UNION ALL
    SELECT incarnation, producer_seq, producer_seq FROM quarantine WHERE incarnation IS NOT NULL
    UNION ALL
    SELECT erased_incarnation, first_seq, last_seq FROM facts_erased
),
spoken AS (
    SELECT incarnation, max(last_seq)::HUGEINT + 1 AS next_seq FROM (
        SELECT incarnation, last_seq FROM have
        UNION ALL SELECT incarnation, last_seq FROM producer_alive
        UNION ALL SELECT incarnation, last_seq FROM producer_closed
    ) GROUP BY incarnation
),
edges AS (
    SELECT incarnation, first_seq, last_seq FROM have
    UNION ALL SELECT incarnation, next_seq, next_seq FROM spoken
),
stretches AS (
    SELECT
        incarnation,
        coalesce(
            max(last_seq) OVER (
                PARTITION BY incarnation ORDER BY first_seq, last_seq
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ),
            -1
        )::HUGEINT + 1 AS missing_from,
        first_seq::HUGEINT - 1 AS missing_to
    FROM edges
)
SELECT
    producer,
    incarnation,
    -- Null where the producer wrote of several runs.
    CASE WHEN first_run = last_run THEN first_run END AS run_id,
    missing_from,
    missing_to
FROM stretches
LEFT JOIN (
    SELECT
        incarnation,
        any_value(producer) AS producer,
        min(run_id) AS first_run,
        max(run_id) AS last_run
    FROM facts GROUP BY incarnation
) USING (incarnation)
WHERE missing_to >= missing_from;
