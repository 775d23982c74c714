-- One row per step that attempts were sampled for: when half, 90% and 99% of them had ended, and all,
-- in seconds after the first start. Those that were aborted or abandoned, and those in flight, have
-- not ended; a quantile that is no earlier than the last end says nothing of a tail and is null.
CREATE OR REPLACE VIEW rollout_quantiles AS
WITH counted AS (
    SELECT
        run_id,
        step,
        count(*) AS trajectories,
        count(*) FILTER (state = 'ended') AS ended,
        count(*) FILTER (state IN ('aborted', 'abandoned')) AS censored,
        count(*) FILTER (state = 'in_flight') AS in_flight,
        min(started_at) AS started_at,
        max(started_at) AS last_started_at,
        list(alive_until ORDER BY alive_until)
            FILTER (state = 'ended' AND alive_until IS NOT NULL) AS ends,
        max(alive_until) AS last_end,
        arg_max(started_at, alive_until) AS last_to_end_started_at
    FROM step_attempts GROUP BY run_id, step
),
-- ceil(q N) in whole numbers: of 10 attempts the 9th is the 90% one, and of 10.0 * 0.9 who knows.
placed AS (
    SELECT
        *,
        (trajectories + 1) // 2 AS n50,
        (9 * trajectories + 9) // 10 AS n90,
        (99 * trajectories + 99) // 100 AS n99
    FROM counted
)
SELECT
    run_id,
    step,
    trajectories,
    ended,
    censored,
    in_flight,
    started_at,
    CASE WHEN n50 < trajectories THEN date_diff('microsecond', started_at, ends[n50]) END / 1e6
        AS t50_s,
    CASE WHEN n90 < trajectories THEN date_diff('microsecond', started_at, ends[n90]) END / 1e6
        AS t90_s,
    CASE WHEN n99 < trajectories THEN date_diff('microsecond', started_at, ends[n99]) END / 1e6
        AS t99_s,
    -- Null while one is in flight.
    CASE WHEN in_flight = 0 THEN date_diff('microsecond', started_at, last_end) END / 1e6 AS t_end_s,
    -- A late slot is no straggler: so late the one that ended last had started.
    CASE
        WHEN in_flight = 0 THEN date_diff('microsecond', started_at, last_to_end_started_at)
    END / 1e6 AS late_start_s,
    -- And so late the last of all.
    date_diff('microsecond', started_at, last_started_at) / 1e6 AS last_start_s
FROM placed;
