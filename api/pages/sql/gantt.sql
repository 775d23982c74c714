WITH sampled AS (
    SELECT group_id FROM opened_groups WHERE run_id = $run_id AND target_step = $step
),
batched AS (
    SELECT unnest(group_ids)::UUID AS group_id
    FROM batch_assembled
    WHERE run_id = $run_id
        AND batch_id IN (SELECT batch_id FROM step_completed WHERE run_id = $run_id AND step = $step)
),
chosen AS (
    FROM sampled
    UNION ALL
    SELECT group_id FROM batched WHERE NOT EXISTS (FROM sampled)
),
begun AS (
    SELECT
        started.group_id,
        started.slot,
        started.trajectory_id,
        started.occurred_at - to_seconds(coalesce(started.queue_s, 0)) AS asked_at,
        started.occurred_at AS began_at,
        finished.occurred_at AS ended_at,
        finished.stop_reason
    FROM trajectory_started AS started
    LEFT JOIN trajectory_finished AS finished
        ON finished.run_id = $run_id AND finished.trajectory_id = started.trajectory_id
    WHERE started.run_id = $run_id
        AND ($step IS NULL OR started.group_id IN (FROM chosen))
    QUALIFY row_number() OVER (PARTITION BY started.trajectory_id ORDER BY started.log_offset) = 1
),
shown AS (
    FROM begun
    ORDER BY
        CASE WHEN $step IS NULL THEN began_at END DESC NULLS LAST,
        ended_at DESC NULLS FIRST, trajectory_id
    LIMIT CASE WHEN $step IS NULL THEN 60 ELSE 120 END
),
told AS (
    SELECT trajectory_id, stage, started_at, coalesce(ended_at, started_at) AS ended_at
    FROM timeline
    WHERE run_id = $run_id AND trajectory_id IN (SELECT trajectory_id FROM shown)
        AND started_at IS NOT NULL AND stage IS NOT NULL
),
frame AS (
    SELECT
        min(asked_at) AS since,
        greatest(
            1,
            epoch(
                greatest(max(shown.ended_at), max(began_at), (SELECT max(ended_at) FROM told))
                - min(asked_at)
            )
        ) / 400 AS slice_s
    FROM shown
),
sliced AS (
    SELECT
        trajectory_id,
        stage,
        greatest(0, epoch(started_at - since)) AS from_s,
        least(400 * slice_s, epoch(ended_at - since)) AS to_s,
        unnest(
            generate_series(
                greatest(0, floor(epoch(started_at - since) / slice_s)::BIGINT),
                least(399, floor(epoch(ended_at - since) / slice_s)::BIGINT)
            )
        ) AS slice,
        slice_s
    FROM told CROSS JOIN frame
),
filled AS (
    SELECT
        trajectory_id,
        slice,
        stage,
        sum(least(to_s, (slice + 1) * slice_s) - greatest(from_s, slice * slice_s)) AS seconds
    FROM sliced GROUP BY trajectory_id, slice, stage
    QUALIFY row_number() OVER (
        PARTITION BY trajectory_id, slice ORDER BY seconds DESC, stage
    ) = 1
),
runs_of AS (
    SELECT
        *,
        slice - row_number() OVER (PARTITION BY trajectory_id, stage ORDER BY slice) AS island
    FROM filled
),
bars AS (
    SELECT
        trajectory_id, stage, min(slice) * slice_s AS from_s, (max(slice) + 1) * slice_s AS to_s
    FROM runs_of CROSS JOIN frame
    GROUP BY trajectory_id, stage, island, slice_s
)
SELECT
    trajectory_id,
    group_id,
    slot,
    since,
    epoch(asked_at - since) AS asked_s,
    epoch(ended_at - since) AS ended_s,
    stop_reason,
    slice_s,
    list({'stage': stage, 'from_s': from_s, 'to_s': to_s} ORDER BY from_s)
        FILTER (stage IS NOT NULL) AS bars,
    (SELECT count(*) FROM begun) AS trajectories
FROM shown
CROSS JOIN frame
LEFT JOIN bars USING (trajectory_id)
GROUP BY ALL
ORDER BY ended_s NULLS LAST, trajectory_id
