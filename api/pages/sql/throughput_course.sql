WITH spans AS (
    SELECT span, started_at, ended_at, coalesce(ended_at, observed_until) AS until
    FROM resource_spans WHERE run_id = $run_id
),
whole AS (
    SELECT greatest(60, ceil(epoch(max(until) - min(started_at)) / 60)) AS width_s FROM spans
),
stretches AS (
    SELECT
        span,
        number,
        started_at + to_seconds(number * width_s) AS began_at,
        least(until, started_at + to_seconds((number + 1) * width_s)) AS ended_at,
        width_s
    FROM (
        SELECT
            *,
            unnest(
                generate_series(
                    0, greatest(0, ceil(epoch(until - started_at) / width_s)::BIGINT - 1)
                )
            ) AS number
        FROM spans CROSS JOIN whole
    )
),
good AS (
    SELECT trajectory_id
    FROM trajectory_judged
    WHERE run_id = $run_id AND rule_set IS NOT DISTINCT FROM $rule_set
    GROUP BY trajectory_id
    HAVING arg_max(trainable, log_offset)
    INTERSECT
    SELECT trajectory_id FROM reward_assigned WHERE run_id = $run_id
    GROUP BY trajectory_id HAVING arg_max_null(value, log_offset) IS NOT NULL
),
ended AS (
    SELECT
        max(occurred_at) AS finished_at,
        trajectory_id IN (FROM good) AS completed
    FROM trajectory_finished WHERE run_id = $run_id GROUP BY trajectory_id
),
placed AS (
    SELECT
        span,
        -- What ended at the very end belongs to the last stretch.
        least(
            floor(epoch(finished_at - started_at) / width_s),
            greatest(0, ceil(epoch(until - started_at) / width_s) - 1)
        )::BIGINT AS number,
        count(*) AS attempted,
        count(*) FILTER (completed) AS completed
    FROM ended
    JOIN spans
        ON finished_at >= started_at
        AND (spans.ended_at IS NULL OR finished_at < spans.ended_at)
    CROSS JOIN whole
    GROUP BY ALL
)
SELECT
    span,
    began_at,
    ended_at,
    epoch(ended_at - began_at) AS seconds,
    coalesce(attempted, 0) AS attempted,
    coalesce(completed, 0) AS completed,
    coalesce(completed, 0) / (epoch(ended_at - began_at) / 3600) AS completed_per_hour
FROM stretches
LEFT JOIN placed USING (span, number)
WHERE ended_at > began_at
    AND (number = 0 OR epoch(ended_at - began_at) >= width_s / 2)
ORDER BY span, began_at
