-- One row per assembled batch: what it is of, and whether the trainer took, refused or still has it.
CREATE OR REPLACE VIEW batches AS
WITH assembled AS (
    SELECT * FROM batch_assembled
    QUALIFY row_number() OVER (PARTITION BY run_id, batch_id ORDER BY log_offset) = 1
),
refused AS (
    SELECT run_id, batch_id, arg_max(reason, log_offset) AS refused_for
    FROM batch_refused GROUP BY run_id, batch_id
),
trained AS (
    SELECT run_id, batch_id, max(step) AS trained_step, max(occurred_at) AS trained_at
    FROM step_completed WHERE batch_id IS NOT NULL GROUP BY run_id, batch_id
)
SELECT
    run_id,
    batch_id,
    batch_sha256,
    step,
    CASE
        WHEN refused_for IS NOT NULL THEN 'refused'
        WHEN trained_step IS NOT NULL THEN 'trained'
        ELSE 'waiting'
    END AS state,
    refused_for,
    trained_step,
    trained_at,
    len(group_ids) AS groups,
    len(trace_ids) AS traces,
    -- In the order of training.
    group_ids,
    lag_min,
    lag_max,
    ready_at,
    held_s,
    occurred_at AS assembled_at
FROM assembled
LEFT JOIN refused USING (run_id, batch_id)
LEFT JOIN trained USING (run_id, batch_id);
