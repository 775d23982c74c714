-- One row per trajectory that asked an engine: its share of the engines' declared GPU-seconds. The
-- GPU-seconds of a second are split among the requests that run in it, by their running time, and
-- in a second column by their uncached prefill and decode tokens. Attributed, not saved: without
-- this trajectory the others would have had them, or nobody.
CREATE OR REPLACE VIEW gpu_shares AS
WITH of_cluster AS (
    SELECT DISTINCT unnest(run_ids) AS run_id, cluster_id FROM gpu_spans
),
asked AS (
    SELECT
        run_id,
        trajectory_id,
        epoch_us(occurred_at) AS end_us,
        -- In the engine and not in its queue; by the client where the engine doesn't say.
        coalesce(engine_s - coalesce(queue_s, 0), client_s) AS running_s,
        coalesce(prompt_tokens::DOUBLE - coalesce(cached_tokens, 0), 0)
        + coalesce(completion_tokens, 0) AS tokens
    FROM turn_completed
    UNION ALL
    SELECT
        run_id, trajectory_id, epoch_us(occurred_at), seconds, coalesce(tokens_so_far, 0)::DOUBLE
    FROM turn_failed
),
-- A request longer than a year, or of negative length, is a foreign writer's mistake: unknown.
requests AS (
    SELECT
        cluster_id,
        run_id,
        trajectory_id,
        CASE
            WHEN running_s BETWEEN 0 AND 31536000 THEN end_us - round(running_s * 1e6)::BIGINT
        END AS start_us,
        end_us,
        -- Tokens per running microsecond, in billionths: whole numbers add up to exactly nothing
        -- when a request ends.
        CASE
            WHEN running_s BETWEEN 1e-6 AND 31536000 AND tokens BETWEEN 0 AND 1e9
                THEN round(tokens * 1e3 / running_s)::BIGINT
            ELSE 0
        END AS weight
    FROM asked
    LEFT JOIN of_cluster USING (run_id)
),
changes AS (
    SELECT
        cluster_id,
        start_us // 1000000 AS second,
        count(*) AS requests,
        sum(weight) AS weight,
        0 AS gpus,
        sum(1000000 - start_us % 1000000) AS requests_us,
        sum(weight::HUGEINT * (1000000 - start_us % 1000000)) AS weight_us,
        0 AS gpus_us
    FROM requests WHERE cluster_id IS NOT NULL AND start_us IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT
        cluster_id,
        end_us // 1000000 AS second,
        -count(*),
        -sum(weight),
        0,
        -sum(1000000 - end_us % 1000000),
        -sum(weight::HUGEINT * (1000000 - end_us % 1000000)),
        0
    FROM requests WHERE cluster_id IS NOT NULL AND start_us IS NOT NULL GROUP BY ALL
    UNION ALL
    SELECT
        cluster_id,
        at_us // 1000000,
        0,
        0,
        sign * gpus,
        0,
        0,
        sign * gpus * (1000000 - at_us % 1000000)
    FROM (
        SELECT
            cluster_id,
            gpus,
            unnest([epoch_us(started_at), epoch_us(ended_at)]) AS at_us,
            unnest([1, -1]) AS sign
        FROM gpu_spans
    )
),
-- Seconds in which something begins or ends; between them nothing changes.
by_second AS (
    SELECT
        cluster_id,
        second,
        sum(requests) AS requests,
        sum(weight) AS weight,
        sum(gpus) AS gpus,
        sum(requests_us) AS requests_us,
        sum(weight_us) AS weight_us,
        sum(gpus_us) AS gpus_us
    FROM changes GROUP BY cluster_id, second
),
running AS (
    SELECT
        cluster_id,
        second,
        lead(second) OVER in_order - second - 1 AS seconds_behind,
        sum(requests) OVER in_order AS requests,
        sum(weight) OVER in_order AS weight,
        sum(gpus) OVER in_order AS gpus,
        (sum(requests) OVER in_order - requests) * 1000000 + requests_us AS requests_us,
        (sum(weight) OVER in_order - weight) * 1000000 + weight_us AS weight_us,
        (sum(gpus) OVER in_order - gpus) * 1000000 + gpus_us AS gpus_us
    FROM by_second
    WINDOW in_order AS (PARTITION BY cluster_id ORDER BY second)
),
-- What one request, or one unit of weight, gets per microsecond of this second and of each of
-- those behind it up to the next row's.
rates AS (
    SELECT
        *,
        CASE WHEN requests_us > 0 THEN gpus_us / requests_us ELSE 0 END AS rate,
        CASE WHEN weight_us > 0 THEN gpus_us / weight_us ELSE 0 END AS weight_rate,
        CASE WHEN requests > 0 THEN gpus / requests ELSE 0 END AS rate_behind,
        CASE WHEN weight > 0 THEN gpus / weight ELSE 0 END AS weight_rate_behind
    FROM running
),
-- And what it would have got since the beginning.
clocks AS (
    SELECT
        cluster_id,
        second,
        rate,
        weight_rate,
        coalesce(sum(rate + seconds_behind * rate_behind) OVER before, 0) AS got,
        coalesce(sum(weight_rate + seconds_behind * weight_rate_behind) OVER before, 0)
            AS weight_got
    FROM rates
    WINDOW before AS (
        PARTITION BY cluster_id ORDER BY second ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
shares AS (
    SELECT
        requests.cluster_id,
        run_id,
        trajectory_id,
        count(*) AS requests,
        count(*) FILTER (start_us IS NULL) AS requests_unknown,
        sum(end_us - start_us) / 1e6 AS running_s,
        sum(
            ends.got - starts.got
            + (end_us % 1000000 * ends.rate - start_us % 1000000 * starts.rate) / 1e6
        ) AS gpu_s,
        sum(
            weight * (
                ends.weight_got - starts.weight_got
                + (end_us % 1000000 * ends.weight_rate - start_us % 1000000 * starts.weight_rate)
                / 1e6
            )
        ) AS gpu_s_by_tokens
    FROM requests
    LEFT JOIN clocks AS starts
        ON starts.cluster_id = requests.cluster_id AND starts.second = start_us // 1000000
    LEFT JOIN clocks AS ends
        ON ends.cluster_id = requests.cluster_id AND ends.second = end_us // 1000000
    GROUP BY requests.cluster_id, run_id, trajectory_id
)
SELECT
    cluster_id,
    run_id,
    trajectory_id,
    requests,
    -- Those of unknown time: they have no share, and the others have it.
    requests_unknown,
    running_s,
    -- Null where no engine GPUs are declared.
    CASE WHEN cluster_id IS NOT NULL THEN coalesce(gpu_s, 0) END AS gpu_s,
    CASE WHEN cluster_id IS NOT NULL THEN coalesce(gpu_s_by_tokens, 0) END AS gpu_s_by_tokens
FROM shares;
