-- One row per run: the share of ended attempts that ran into a cap.
SELECT
    run_id,
    'ended attempts' AS subject,
    coalesce(
        sum(trajectories) FILTER (
            stop_reason IN ('turn_cap', 'output_cap', 'context_cap', 'clock_cap')
        ),
        0
    ) / any_value(ended) AS value,
    any_value(ended)::BIGINT AS out_of
FROM stop_reasons
GROUP BY run_id;
