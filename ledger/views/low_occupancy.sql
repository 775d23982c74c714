-- One row per run, span of constant declared resources and clock hour: how long at most 10% of the
-- declared concurrency was in flight. It says of an asynchronous run what the tail says of steps, and
-- is another measure: attempts that are slow don't show while others fill up.
CREATE OR REPLACE VIEW low_occupancy AS
WITH started AS (
    SELECT run_id, trajectory_id, min(occurred_at) AS started_at
    FROM trajectory_started GROUP BY run_id, trajectory_id
),
finished AS (
    SELECT run_id, trajectory_id, max(occurred_at) AS finished_at
    FROM trajectory_finished GROUP BY run_id, trajectory_id
),
edges AS (
    SELECT run_id, started_at AS moved_at, 1 AS change
    FROM started WHERE started_at IS NOT NULL
    UNION ALL
    SELECT run_id, finished_at, -1
    FROM finished
    JOIN started USING (run_id, trajectory_id)
    WHERE finished_at IS NOT NULL AND started_at IS NOT NULL
),
-- A stretch from one change to the next. (One of over a month is a mistaken clock's: no run is idle
-- or unchanged for so long.)
swept AS (
    SELECT
        run_id,
        moved_at AS since,
        lead(moved_at) OVER in_order AS until,
        sum(change) OVER in_order AS in_flight
    FROM edges
    WINDOW in_order AS (PARTITION BY run_id ORDER BY moved_at, change ROWS UNBOUNDED PRECEDING)
),
windowed AS (
    SELECT
        run_id,
        greatest(since, hour) AS since,
        least(until, hour + INTERVAL 1 HOUR) AS until,
        hour,
        in_flight
    FROM (
        FROM swept
        SELECT
            *,
            unnest(
                generate_series(date_trunc('hour', since), date_trunc('hour', until), INTERVAL 1 HOUR)
            ) AS hour
        WHERE until > since AND until < since + INTERVAL 31 DAY
    )
),
placed AS (
    SELECT
        windowed.run_id,
        span,
        hour,
        trajectory_concurrency,
        in_flight,
        greatest(since, spans.started_at) AS since,
        least(until, coalesce(ended_at, until)) AS until,
        date_diff(
            'microsecond',
            greatest(since, spans.started_at),
            least(until, coalesce(ended_at, until))
        ) / 1e6 AS seconds
    FROM windowed
    JOIN resource_spans AS spans
        ON spans.run_id = windowed.run_id
        AND until > spans.started_at
        AND (ended_at IS NULL OR since < ended_at)
    WHERE since < until
)
SELECT
    run_id,
    span,
    hour,
    -- The part of the hour between the run's first start and its last start or end, in this span.
    min(since) AS window_started_at,
    max(until) AS window_ended_at,
    sum(seconds) AS window_s,
    any_value(trajectory_concurrency) AS trajectory_concurrency,
    sum(in_flight * seconds) / nullif(sum(seconds), 0) AS in_flight_mean,
    max(in_flight) AS in_flight_max,
    CASE
        WHEN any_value(trajectory_concurrency) IS NOT NULL
            THEN coalesce(
                sum(seconds) FILTER (10::HUGEINT * in_flight <= trajectory_concurrency), 0
            )
    END AS low_occupancy_s,
    CASE
        WHEN any_value(trajectory_concurrency) IS NOT NULL
            THEN coalesce(
                sum(seconds) FILTER (10::HUGEINT * in_flight <= trajectory_concurrency), 0
            ) / nullif(sum(seconds), 0)
    END AS low_occupancy_share
FROM placed GROUP BY run_id, span, hour;
