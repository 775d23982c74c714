-- One row per attempt that was sampled for a step, until when it was alive and how that ended. It is
-- the population of the tail: not the batch, from which over-sampling has cut the tail off.
CREATE OR REPLACE VIEW step_attempts AS
WITH sampled AS (
    SELECT run_id, target_step, group_id FROM opened_groups WHERE target_step IS NOT NULL
),
started AS (
    SELECT
        run_id,
        group_id,
        slot,
        trajectory_id,
        min(occurred_at) AS started_at,
        min(queue_s) AS queue_s
    FROM trajectory_started GROUP BY run_id, group_id, slot, trajectory_id
),
finished AS (
    SELECT
        run_id,
        group_id,
        slot,
        trajectory_id,
        max(occurred_at) AS finished_at,
        min(stop_reason) AS stop_reason
    FROM trajectory_finished GROUP BY run_id, group_id, slot, trajectory_id
)
SELECT
    run_id,
    target_step AS step,
    group_id,
    slot,
    trajectory_id,
    queue_s,
    started_at,
    -- One that was aborted would have gone on: when it would have ended is unknown, and not before.
    -- One that fell silent was given up when its group was decided.
    CASE
        WHEN stop_reason = 'cancelled' THEN 'aborted'
        WHEN stop_reason IS NOT NULL THEN 'ended'
        WHEN decided_at IS NOT NULL THEN 'abandoned'
        ELSE 'in_flight'
    END AS state,
    CASE WHEN stop_reason IS NULL THEN decided_at ELSE finished_at END AS alive_until,
    stop_reason
FROM sampled
JOIN (
    FROM started FULL JOIN finished USING (run_id, group_id, slot, trajectory_id)
) USING (run_id, group_id)
LEFT JOIN (SELECT group_id, decided_at FROM group_decisions) USING (group_id);
