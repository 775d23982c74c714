-- One row per run: attempts that were trained on with a token older than the bound that was set for
-- their batch, or than $lag_bound where that is given; of all whose lag is known.
WITH configured AS (
    SELECT
        run_id,
        batch_id,
        -- What is no JSON is a foreign writer's mistake, and says nothing.
        try_cast(arg_min(cut.configuration, log_offset) AS JSON) AS configuration
    FROM batch_assembled GROUP BY run_id, batch_id
),
bounds AS (
    SELECT
        run_id,
        batch_id,
        coalesce(
            $lag_bound::BIGINT,
            try_cast(configuration ->> 'max_staleness' AS BIGINT),
            CASE WHEN configuration ->> 'mode' = 'sync' THEN 0 ELSE 2 END
        ) AS bound
    FROM configured
)
SELECT
    run_id,
    printf('a lag of up to %d, bound %d', max(lag), min(bound)) AS subject,
    count(*)::DOUBLE AS value,
    any_value(known)::BIGINT AS out_of
FROM policy_lag
JOIN bounds USING (run_id, batch_id)
JOIN (SELECT run_id, count(lag) AS known FROM policy_lag GROUP BY run_id) USING (run_id)
WHERE lag > bound
GROUP BY run_id;
