-- One row per slot of every opened group: what it has come to, why, and which attempt decided that.
-- Every slot is in exactly one state, also before its group is decided.
CREATE OR REPLACE VIEW dispositions AS
WITH slots AS (
    SELECT
        run_id,
        group_id,
        task_id,
        target_step,
        -- No group is that large; one that claims to be must not fill the memory.
        unnest(range(least(expected_size, 10000))) AS slot
    FROM opened_groups
),
seen AS (
    SELECT group_id, slot, trajectory_id, log_offset FROM trajectory_started
    UNION ALL SELECT group_id, slot, trajectory_id, log_offset FROM trajectory_finished
),
attempts AS (
    SELECT group_id, slot, trajectory_id, min(log_offset) AS since
    FROM seen GROUP BY group_id, slot, trajectory_id
),
newest AS (
    SELECT group_id, slot, arg_max(trajectory_id, since) AS trajectory_id
    FROM attempts GROUP BY group_id, slot
),
ended AS (
    SELECT group_id, trajectory_id FROM trajectory_finished
    UNION SELECT group_id, trajectory_id FROM trajectory_judged
),
undecided AS (
    SELECT group_id, slot, trajectory_id, ended.trajectory_id IS NOT NULL AS has_ended
    FROM newest LEFT JOIN ended USING (group_id, trajectory_id)
),
-- The member that votes; where none does, the last one.
deciding AS (
    SELECT group_id, slot, trajectory_id, votes, masked, exclusion_reason, outcome FROM members
    QUALIFY row_number() OVER (
        PARTITION BY group_id, slot
        ORDER BY votes DESC, CASE WHEN votes THEN member_no ELSE -member_no END
    ) = 1
),
listed AS (
    SELECT unnest(group_ids) AS group_id, batch_id, step, log_offset FROM batch_assembled
),
batched AS (
    SELECT group_id, batch_id, step FROM listed
    QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY log_offset DESC) = 1
),
trained AS (
    SELECT DISTINCT batch_id FROM step_completed WHERE batch_id IS NOT NULL
),
refused AS (
    SELECT DISTINCT batch_id FROM batch_refused
),
said AS (
    SELECT
        slots.run_id,
        slots.group_id,
        slots.slot,
        slots.task_id,
        slots.target_step,
        batched.step,
        batched.batch_id,
        coalesce(deciding.trajectory_id, undecided.trajectory_id) AS trajectory_id,
        drop_reason,
        exclusion_reason,
        CASE
            WHEN decision IS NULL AND undecided.trajectory_id IS NULL THEN 'never_started'
            WHEN decision IS NULL AND has_ended THEN 'pending'
            WHEN decision IS NULL THEN 'in_flight'
            WHEN votes AND decision = 'evaluated' THEN 'evaluated'
            WHEN votes AND decision = 'dropped' THEN 'dropped'
            WHEN votes AND refused.batch_id IS NOT NULL THEN 'dropped'
            WHEN votes AND masked THEN 'masked'
            WHEN votes AND trained.batch_id IS NOT NULL THEN 'trained'
            WHEN votes THEN 'decided'
            WHEN outcome = 'abandoned' THEN 'abandoned'
            WHEN deciding.trajectory_id IS NOT NULL THEN 'excluded'
            -- It began when the group had been decided without it.
            WHEN undecided.trajectory_id IS NOT NULL THEN 'excluded'
            ELSE 'never_started'
        END AS disposition,
        decision IS NOT NULL AND deciding.trajectory_id IS NULL AS late
    FROM slots
    LEFT JOIN (SELECT group_id, decision, drop_reason FROM group_decisions) AS decided
        ON decided.group_id = slots.group_id
    LEFT JOIN deciding ON deciding.group_id = slots.group_id AND deciding.slot = slots.slot
    LEFT JOIN undecided ON undecided.group_id = slots.group_id AND undecided.slot = slots.slot
    LEFT JOIN batched ON batched.group_id = slots.group_id
    LEFT JOIN trained ON trained.batch_id = batched.batch_id
    LEFT JOIN refused ON refused.batch_id = batched.batch_id
)
SELECT
    run_id,
    group_id,
    slot,
    disposition,
    -- The drop or exclusion reason; null where nothing was lost.
    CASE
        WHEN disposition = 'dropped' THEN coalesce(drop_reason, 'refused')
        WHEN disposition = 'excluded' AND late THEN 'late'
        WHEN disposition IN ('excluded', 'abandoned') THEN exclusion_reason
    END AS reason,
    trajectory_id,
    task_id,
    -- The step of its batch; null while it is in none.
    step,
    -- The step that it was sampled for; null: none in particular.
    target_step,
    batch_id
FROM said;
