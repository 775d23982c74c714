-- One row per run, step and engine: seconds in which exactly one of the run's attempts was decoding
-- there, so that an engine was held up for one sequence. A turn decodes from its first token on;
-- where that is unknown, all the time that the client waited for it.
CREATE OR REPLACE VIEW single_sequence AS
WITH decoding AS (
    SELECT
        turns.run_id,
        engine,
        target_step,
        occurred_at,
        coalesce(engine_s - first_token_s, engine_s, client_s) AS seconds,
        first_token_s IS NULL OR engine_s IS NULL AS whole
    FROM turn_completed AS turns
    LEFT JOIN opened_groups USING (run_id, group_id)
    WHERE engine IS NOT NULL AND occurred_at IS NOT NULL
),
-- Seconds before an end, as a time.
timed AS (
    SELECT
        *,
        epoch_us(occurred_at) AS until_us,
        epoch_us(occurred_at) - (seconds * 1e6)::BIGINT AS since_us
    FROM decoding
    WHERE seconds > 0 AND seconds < 31536000
),
-- While one decodes, the sum of steps is that one's; 0 stands for none in particular.
edges AS (
    SELECT
        run_id, engine, since_us AS at_us, 1 AS change, coalesce(target_step + 1, 0) AS of_step
    FROM timed
    UNION ALL
    SELECT run_id, engine, until_us, -1, coalesce(target_step + 1, 0) FROM timed
),
swept AS (
    SELECT
        run_id,
        engine,
        sum(change) OVER in_order AS decoding,
        sum(change * of_step) OVER in_order AS of_step,
        lead(at_us) OVER in_order - at_us AS lasting_us
    FROM edges
    WINDOW in_order AS (
        PARTITION BY run_id, engine ORDER BY at_us, change ROWS UNBOUNDED PRECEDING
    )
),
alone AS (
    SELECT run_id, engine, of_step, sum(lasting_us) / 1e6 AS single_sequence_s
    FROM swept
    WHERE decoding = 1
    GROUP BY run_id, engine, of_step
),
counted AS (
    SELECT
        run_id,
        engine,
        coalesce(target_step + 1, 0) AS of_step,
        count(*) AS turns,
        count(*) FILTER (whole) AS turns_without_first_token
    FROM timed GROUP BY run_id, engine, of_step
)
SELECT
    run_id,
    -- Null: of attempts that were sampled for no step in particular.
    nullif(of_step, 0) - 1 AS step,
    engine,
    coalesce(single_sequence_s, 0) AS single_sequence_s,
    turns,
    turns_without_first_token
FROM counted
LEFT JOIN alone USING (run_id, engine, of_step);
