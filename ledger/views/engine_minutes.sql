-- One row per run, engine and minute: the engine's state by its samples. Samples belong to the
-- cluster's own run, since an engine may serve several; they show under the cluster's, and while a
-- run lasts under each that has turns there.
CREATE OR REPLACE VIEW engine_minutes AS
WITH uses AS (
    SELECT DISTINCT run_id, engine FROM turn_completed WHERE engine IS NOT NULL
),
lasting AS (
    SELECT
        run_id,
        date_trunc('minute', min(started_at)) AS first_minute,
        max(observed_until) AS last_at
    FROM resource_spans GROUP BY run_id
),
-- A sample holds until the next one, the last as long as the one before it, and none beyond its
-- minute.
sampled AS (
    SELECT
        *,
        date_trunc('minute', occurred_at) AS minute,
        date_diff(
            'microsecond',
            occurred_at,
            least(
                coalesce(
                    lead(occurred_at) OVER in_order,
                    occurred_at + (occurred_at - lag(occurred_at) OVER in_order),
                    date_trunc('minute', occurred_at) + INTERVAL 1 MINUTE
                ),
                date_trunc('minute', occurred_at) + INTERVAL 1 MINUTE
            )
        ) / 1e6 AS seconds,
        kv_used_tokens / nullif(kv_capacity_tokens, 0) AS kv_share
    FROM engine_sampled
    WHERE occurred_at IS NOT NULL
    WINDOW in_order AS (PARTITION BY run_id, engine ORDER BY occurred_at, log_offset)
),
by_minute AS (
    SELECT
        run_id AS cluster_run_id,
        engine,
        minute,
        count(*) AS samples,
        sum(seconds) AS covered_s,
        avg(kv_used_tokens) AS kv_used_tokens,
        max(kv_capacity_tokens) AS kv_capacity_tokens,
        avg(kv_share) AS kv_share,
        max(kv_share) AS kv_share_max,
        avg(running) AS running,
        max(running) AS running_max,
        avg(queued) AS queued,
        max(queued) AS queued_max,
        max(retracted) AS retracted_max,
        max(paused) AS paused_max,
        avg(generation_tokens_per_s) AS generation_tokens_per_s,
        count(queued) > 0 AS queue_known,
        -- Requests that queue while there is room in the KV cache wait for the running limit.
        sum(queued * seconds) FILTER (kv_share >= 0.85) AS kv_waiter_s,
        sum(queued * seconds) FILTER (kv_share < 0.85) AS running_limit_waiter_s,
        sum(queued * seconds) FILTER (kv_share IS NULL) AS unknown_waiter_s
    FROM sampled GROUP BY run_id, engine, minute
)
SELECT cluster_run_id AS run_id, * FROM by_minute
UNION ALL
SELECT run_id, by_minute.*
FROM uses
JOIN lasting USING (run_id)
JOIN by_minute ON by_minute.engine = uses.engine AND minute BETWEEN first_minute AND last_at
WHERE run_id <> cluster_run_id;
