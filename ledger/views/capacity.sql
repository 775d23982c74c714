-- One row per run, engine or pool, and minute: what is used of it, how much there is, and who waits
-- for it. `trajectory_concurrency` is the pool of attempts in flight, with where they are, and
-- `back_pressure` stands for ready batches that are held for room.
CREATE OR REPLACE VIEW capacity AS
WITH
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
        ) / 1e6 AS seconds
    FROM pool_sampled
    WHERE occurred_at IS NOT NULL
    WINDOW in_order AS (PARTITION BY run_id, incarnation ORDER BY occurred_at, log_offset)
),
uses AS (
    SELECT run_id, minute, seconds, unnest(pools) AS pool FROM sampled
),
-- Several producers may sample pools of their own at once: then they add up.
pools AS (
    SELECT
        run_id,
        minute,
        pool.name AS resource,
        count(*) AS samples,
        least(60, sum(seconds)) AS covered_s,
        sum(pool.used * seconds) / nullif(least(60, sum(seconds)), 0) AS used,
        max(pool.used) AS used_max,
        sum(pool.limit * seconds) / nullif(least(60, sum(seconds)), 0) AS most,
        max(pool.waiting) AS waiting_max,
        sum(pool.waiting * seconds) AS waiter_s
    FROM uses GROUP BY run_id, minute, pool.name
),
places AS (
    SELECT
        run_id,
        minute,
        count(*) AS samples,
        least(60, sum(seconds)) AS covered_s,
        sum(in_queue * seconds) AS queue_s,
        max(in_queue) AS in_queue_max,
        sum(in_sandbox_start * seconds) AS sandbox_start_s,
        sum(in_setup * seconds) AS setup_s,
        sum(in_model * seconds) AS model_s,
        sum(in_tool * seconds) AS tool_s,
        sum(in_verify * seconds) AS verify_s
    FROM sampled GROUP BY run_id, minute
),

-- Waits that only their end tells of, minute by minute. (One of over a week is a mistake.)
waits AS (
    SELECT run_id, 'trajectory_concurrency' AS resource, occurred_at AS until, queue_s AS seconds
    FROM trajectory_started
    WHERE queue_s > 0
    UNION ALL
    SELECT
        run_id,
        'back_pressure',
        ready_at + to_microseconds((held_s * 1e6)::BIGINT),
        held_s
    FROM batch_assembled
    WHERE held_s > 0 AND held_s < 604800
),
begun AS (
    SELECT run_id, resource, until, until - to_microseconds((seconds * 1e6)::BIGINT) AS since
    FROM waits
    WHERE seconds < 604800
),
waited AS (
    SELECT
        run_id,
        resource,
        minute,
        sum(
            date_diff(
                'microsecond', greatest(since, minute), least(until, minute + INTERVAL 1 MINUTE)
            )
        ) / 1e6 AS waiter_s
    FROM (
        FROM begun
        SELECT
            *,
            unnest(
                generate_series(
                    date_trunc('minute', since), date_trunc('minute', until), INTERVAL 1 MINUTE
                )
            ) AS minute
    )
    GROUP BY run_id, resource, minute
),
concurrency AS (
    SELECT
        run_id,
        minute,
        places.* EXCLUDE (run_id, minute),
        -- A sample knows who waits; where it doesn't say, the attempts that left the queue do.
        coalesce(queue_s, waiter_s) AS waiter_s
    FROM places
    FULL JOIN (FROM waited WHERE resource = 'trajectory_concurrency') USING (run_id, minute)
),
waiters AS (
    SELECT run_id, minute, 'kv' AS resource, kv_waiter_s AS waiter_s, queue_known AS known
    FROM engine_minutes
    UNION ALL
    SELECT run_id, minute, 'running_limit', running_limit_waiter_s, queue_known
    FROM engine_minutes
    UNION ALL
    SELECT run_id, minute, 'engine', unknown_waiter_s, queue_known FROM engine_minutes
    UNION ALL
    SELECT run_id, minute, resource, waiter_s, true FROM pools
    UNION ALL
    SELECT run_id, minute, 'trajectory_concurrency', waiter_s, waiter_s IS NOT NULL
    FROM concurrency
    UNION ALL
    SELECT run_id, minute, resource, waiter_s, true FROM waited WHERE resource = 'back_pressure'
),
summed AS (
    SELECT run_id, minute, resource, sum(waiter_s) AS waiter_s, bool_or(known) AS known
    FROM waiters GROUP BY run_id, minute, resource
),
-- What most waiter-seconds were spent on.
bound AS (
    SELECT
        run_id,
        minute,
        CASE
            WHEN max(waiter_s) > 0 THEN arg_max(resource, (waiter_s, resource)) FILTER (waiter_s > 0)
            WHEN bool_or(known) THEN 'none'
        END AS binding
    FROM summed GROUP BY run_id, minute
),
listed AS (
    SELECT
        run_id,
        minute,
        'engine' AS kind,
        engine AS resource,
        samples,
        covered_s,
        kv_used_tokens AS used,
        kv_share_max * kv_capacity_tokens AS used_max,
        kv_capacity_tokens::DOUBLE AS most,
        kv_share AS used_share,
        queued_max AS waiting_max,
        coalesce(kv_waiter_s, 0) + coalesce(running_limit_waiter_s, 0)
        + coalesce(unknown_waiter_s, 0) AS waiter_s,
        CASE
            WHEN coalesce(kv_waiter_s, 0) > coalesce(running_limit_waiter_s, 0) THEN 'kv'
            WHEN running_limit_waiter_s > 0 THEN 'running_limit'
            WHEN unknown_waiter_s > 0 THEN 'engine'
        END AS waits_for,
        running,
        running_max,
        queued,
        retracted_max,
        paused_max
    FROM engine_minutes
    UNION ALL BY NAME
    SELECT
        run_id,
        minute,
        'pool' AS kind,
        resource,
        samples,
        covered_s,
        used,
        used_max,
        most,
        used / nullif(most, 0) AS used_share,
        waiting_max,
        waiter_s,
        CASE WHEN waiter_s > 0 THEN resource END AS waits_for
    FROM pools
    UNION ALL BY NAME
    SELECT
        concurrency.run_id,
        minute,
        'trajectories' AS kind,
        'trajectory_concurrency' AS resource,
        samples,
        covered_s,
        (sandbox_start_s + setup_s + model_s + tool_s + verify_s) / nullif(covered_s, 0) AS used,
        trajectory_concurrency::DOUBLE AS most,
        (sandbox_start_s + setup_s + model_s + tool_s + verify_s) / nullif(covered_s, 0)
        / nullif(trajectory_concurrency, 0) AS used_share,
        in_queue_max AS waiting_max,
        waiter_s,
        CASE WHEN waiter_s > 0 THEN 'trajectory_concurrency' END AS waits_for,
        sandbox_start_s / nullif(covered_s, 0) AS in_sandbox_start,
        setup_s / nullif(covered_s, 0) AS in_setup,
        model_s / nullif(covered_s, 0) AS in_model,
        tool_s / nullif(covered_s, 0) AS in_tool,
        verify_s / nullif(covered_s, 0) AS in_verify
    FROM concurrency
    LEFT JOIN resource_spans AS spans
        ON spans.run_id = concurrency.run_id
        AND minute + INTERVAL 59999 MILLISECOND >= spans.started_at
        AND (spans.ended_at IS NULL OR minute + INTERVAL 59999 MILLISECOND < spans.ended_at)
    UNION ALL BY NAME
    SELECT run_id, minute, 'batches' AS kind, resource, waiter_s, resource AS waits_for
    FROM waited
    WHERE resource = 'back_pressure'
)
SELECT
    run_id,
    minute,
    kind,
    resource,
    samples,
    -- Seconds of the minute that samples stand for.
    covered_s,
    -- Means and maxima over the minute: KV tokens of an engine, places of a pool.
    used,
    used_max,
    most AS capacity,
    used_share,
    waiting_max,
    waiter_s,
    -- What those who wait at this engine or pool wait for; null: nobody waits.
    waits_for,
    -- Of all that the run uses, what most waiter-seconds were spent on; none: nobody waits.
    binding,
    -- Of an engine.
    running,
    running_max,
    queued,
    retracted_max,
    paused_max,
    -- Of trajectories.
    in_sandbox_start,
    in_setup,
    in_model,
    in_tool,
    in_verify
FROM listed
LEFT JOIN bound USING (run_id, minute);
