-- One row per run and span of constant declared resources: what was declared, from when until when.
-- Resources declared again as they are make no new span. Span 0 is what happened before the first
-- declaration, and everything where there is none.
CREATE OR REPLACE VIEW resource_spans AS
WITH declared AS (
    SELECT
        *,
        coalesce(occurred_at, log_time) AS declared_at,
        {
            'engine_nodes': engine_nodes,
            'engines': engines,
            'engine_gpus_per_node': engine_gpus_per_node,
            'engine_gpu_type': engine_gpu_type,
            'kv_tokens_per_engine': kv_tokens_per_engine,
            'engine_context_cap_tokens': engine_context_cap_tokens,
            'max_running_requests': max_running_requests,
            'trainer_nodes': trainer_nodes,
            'trainer_gpus': trainer_gpus,
            'trainer_gpu_type': trainer_gpu_type,
            'colocated': colocated,
            'sandbox_backend': sandbox_backend,
            'sandbox_slots': sandbox_slots,
            'sandbox_vcpus': sandbox_vcpus,
            'trajectory_concurrency': trajectory_concurrency,
            'limits': list_sort(map_entries(limits))
        } AS said
    FROM resources_declared
),
changed AS (
    FROM declared
    WINDOW in_order AS (PARTITION BY run_id ORDER BY declared_at, log_time, log_offset)
    QUALIFY row_number() OVER in_order = 1 OR said IS DISTINCT FROM lag(said) OVER in_order
),
seen AS (
    SELECT run_id, min(first_at) AS first_at, max(last_at) AS last_at
    FROM (
        SELECT run_id, min(occurred_at) AS first_at, max(occurred_at) AS last_at
        FROM trajectory_started GROUP BY run_id
        UNION ALL
        SELECT run_id, min(occurred_at), max(occurred_at) FROM trajectory_finished GROUP BY run_id
        UNION ALL
        SELECT run_id, min(started_at), max(coalesce(occurred_at, started_at))
        FROM step_completed GROUP BY run_id
    )
    GROUP BY run_id
),
first_declared AS (
    SELECT run_id, min(declared_at) AS declared_at FROM declared GROUP BY run_id
),
spans AS (
    SELECT
        run_id,
        row_number() OVER in_order AS span,
        declared_at AS started_at,
        lead(declared_at) OVER in_order AS ended_at,
        said
    FROM changed
    WINDOW in_order AS (PARTITION BY run_id ORDER BY declared_at, log_time, log_offset)
    UNION ALL
    SELECT seen.run_id, 0, first_at, declared_at, NULL
    FROM seen
    LEFT JOIN first_declared USING (run_id)
    WHERE declared_at IS NULL OR first_at < declared_at
)
SELECT
    run_id,
    span,
    started_at,
    -- Null: in force until now.
    ended_at,
    -- Where nothing ended it: up to the last start or end of an attempt or a step.
    coalesce(ended_at, greatest(started_at, last_at)) AS observed_until,
    date_diff(
        'microsecond', started_at, coalesce(ended_at, greatest(started_at, last_at))
    ) / 1e6 AS wall_s,
    said.engine_nodes AS engine_nodes,
    said.engines AS engines,
    said.engine_gpus_per_node AS engine_gpus_per_node,
    said.engine_nodes::HUGEINT * said.engine_gpus_per_node AS engine_gpus,
    said.engine_gpu_type AS engine_gpu_type,
    said.kv_tokens_per_engine AS kv_tokens_per_engine,
    said.engine_context_cap_tokens AS engine_context_cap_tokens,
    said.max_running_requests AS max_running_requests,
    said.trainer_nodes AS trainer_nodes,
    said.trainer_gpus AS trainer_gpus,
    said.trainer_gpu_type AS trainer_gpu_type,
    said.colocated AS colocated,
    -- All, idle ones too. Null while one side is undeclared, or whether they share is.
    CASE
        WHEN said.engine_nodes IS NULL OR said.engine_gpus_per_node IS NULL
            OR said.trainer_gpus IS NULL THEN NULL
        WHEN said.colocated
            THEN greatest(said.engine_nodes::HUGEINT * said.engine_gpus_per_node, said.trainer_gpus)
        WHEN NOT said.colocated
            THEN said.engine_nodes::HUGEINT * said.engine_gpus_per_node + said.trainer_gpus
    END AS gpus,
    said.sandbox_backend AS sandbox_backend,
    said.sandbox_slots AS sandbox_slots,
    said.sandbox_vcpus AS sandbox_vcpus,
    said.trajectory_concurrency AS trajectory_concurrency,
    map_from_entries(said.limits) AS limits
FROM spans
LEFT JOIN seen USING (run_id);
