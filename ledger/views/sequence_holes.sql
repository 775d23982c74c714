-- One row per stretch of numbers of a producer's incarnation that the book doesn't have. Numbers up
-- to the last one that the producer spoke of are due; what it never spoke of is its unseen tail.
CREATE OR REPLACE VIEW sequence_holes AS
WITH elsewhere AS (
    SELECT incarnation, producer_seq AS first_seq, producer_seq AS last_seq FROM duplicates
    UNION ALL
    SELECT incarnation, producer_seq, producer_seq FROM quarantine WHERE incarnation IS NOT NULL
    UNION ALL
    SELECT erased_incarnation, first_seq, last_seq FROM facts_erased
),
spoken AS (
    SELECT incarnation, max(last_seq)::HUGEINT + 1 AS next_seq FROM (
        SELECT incarnation, last_seq FROM producer_numbers
        UNION ALL SELECT incarnation, last_seq FROM elsewhere
        UNION ALL SELECT incarnation, last_seq FROM producer_alive
        UNION ALL SELECT incarnation, last_seq FROM producer_closed
    ) GROUP BY incarnation
),
-- Nearly all producers have all their numbers, each once, which count and sums tell (numbers that
-- are there twice would have to be made up to have all three right). To put the numbers of the
-- others in order costs a hundred times more.
unsure AS (
    SELECT incarnation, next_seq
    FROM (SELECT *, least(next_seq, 1099511627776) AS n FROM spoken)
    LEFT JOIN producer_numbers USING (incarnation)
    WHERE numbers IS DISTINCT FROM next_seq
        OR total <> n * (n - 1) // 2
        OR squares <> n * (n - 1) * (2 * n - 1) // 6
),
edges AS (
    SELECT incarnation, producer_seq AS first_seq, producer_seq AS last_seq
    FROM facts SEMI JOIN unsure USING (incarnation)
    UNION ALL
    SELECT incarnation, first_seq, last_seq FROM elsewhere SEMI JOIN unsure USING (incarnation)
    UNION ALL
    SELECT incarnation, next_seq, next_seq FROM unsure
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
LEFT JOIN producer_numbers USING (incarnation)
WHERE missing_to >= missing_from;
