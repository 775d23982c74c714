-- One row per run: attempts that were trained on with a token older than the bound that was set for
-- their batch, or than $lag_bound where that is given; of all whose lag is known.
WITH bounds AS (
    SELECT
        run_id,
        batch_id,
        coalesce(
            $lag_bound::BIGINT,
            try_cast(cut.configuration ->> '$.max_staleness' AS BIGINT),
            CASE WHEN cut.configuration ->> '$.mode' = 'sync' THEN 0 ELSE 2 END
        ) AS bound
    FROM batch_assembled
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
