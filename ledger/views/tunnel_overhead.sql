-- One row per run, backend, template, vCPUs and hour: how much longer commands took by the client
-- than inside the sandbox. The difference is the way there and back.
CREATE OR REPLACE VIEW tunnel_overhead AS
WITH sandbox AS (
    SELECT
        run_id,
        sandbox_id,
        min(backend) AS backend,
        min(template) AS template,
        min(vcpus) AS vcpus
    FROM sandbox_started GROUP BY run_id, sandbox_id
),
calls AS (
    SELECT
        run_id,
        backend,
        template,
        vcpus,
        date_trunc('hour', occurred_at) AS hour,
        wall_s,
        sandbox_s,
        wall_s - sandbox_s AS tunnel_s,
        error_type
    FROM tool_call_completed
    LEFT JOIN sandbox USING (run_id, sandbox_id)
),
summed AS (
    SELECT
        run_id,
        backend,
        template,
        vcpus,
        hour,
        count(*) AS calls,
        count(error_type) AS failed,
        count(tunnel_s) AS timed,
        quantile_disc(tunnel_s, [0.5, 0.9, 0.99]) AS percentiles,
        sum(wall_s) FILTER (tunnel_s IS NOT NULL) AS wall_s,
        sum(sandbox_s) FILTER (tunnel_s IS NOT NULL) AS sandbox_s,
        sum(tunnel_s) AS tunnel_s
    FROM calls
    GROUP BY run_id, backend, template, vcpus, hour
)
SELECT
    run_id,
    backend,
    template,
    -- Null where nobody knows.
    vcpus,
    hour,
    calls,
    failed,
    -- Those of which both times are known; the others are left out of all that follows.
    timed,
    percentiles[1] AS p50_s,
    percentiles[2] AS p90_s,
    percentiles[3] AS p99_s,
    wall_s,
    sandbox_s,
    tunnel_s,
    tunnel_s / nullif(wall_s, 0) AS share_of_wall
FROM summed;
