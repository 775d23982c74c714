-- One row per cluster and stretch of constant declared engine GPUs. Runs whose requests went to an
-- engine that was sampled under one cluster's id share that cluster's GPUs; any other run is a
-- cluster of its own. Where several of its runs declare GPUs at a time, they mean the same ones.
CREATE OR REPLACE VIEW gpu_spans AS
WITH asked AS (
    SELECT DISTINCT run_id, engine FROM turn_completed WHERE engine IS NOT NULL
    UNION
    SELECT DISTINCT run_id, engine FROM turn_failed WHERE engine IS NOT NULL
),
sampled AS (
    SELECT engine, min(run_id) AS cluster_id FROM engine_sampled GROUP BY engine
),
of_cluster AS (
    SELECT run_id, min(cluster_id) AS cluster_id
    FROM asked JOIN sampled USING (engine) GROUP BY run_id
),
declared AS (
    SELECT
        coalesce(cluster_id, run_id) AS cluster_id,
        run_id,
        engine_gpus AS gpus,
        started_at,
        observed_until
    FROM resource_spans
    LEFT JOIN of_cluster USING (run_id)
    -- More than a million are a foreign writer's mistake: undeclared.
    WHERE engine_gpus BETWEEN 1 AND 1000000 AND observed_until > started_at
),
cuts AS (
    SELECT cluster_id, started_at AS cut_at FROM declared
    UNION
    SELECT cluster_id, observed_until FROM declared
),
pieces AS (
    SELECT
        cluster_id,
        cut_at AS started_at,
        lead(cut_at) OVER (PARTITION BY cluster_id ORDER BY cut_at) AS ended_at
    FROM cuts
)
SELECT
    pieces.cluster_id,
    pieces.started_at,
    pieces.ended_at,
    list(DISTINCT declared.run_id ORDER BY declared.run_id) AS run_ids,
    max(gpus) AS gpus,
    max(gpus) * date_diff('microsecond', pieces.started_at, pieces.ended_at) / 1e6 AS gpu_s
FROM pieces
JOIN declared
    ON declared.cluster_id = pieces.cluster_id
    AND declared.started_at <= pieces.started_at
    AND declared.observed_until >= pieces.ended_at
GROUP BY pieces.cluster_id, pieces.started_at, pieces.ended_at;
