-- One row per attempt: what became of it for training, and for which one reason it was waste.
-- `dispositions` says that of slots, this of every attempt in them.
CREATE OR REPLACE VIEW trajectory_uses AS
WITH started AS (
    SELECT run_id, group_id, trajectory_id, slot FROM trajectory_started
    UNION ALL
    SELECT run_id, group_id, trajectory_id, slot FROM trajectory_finished
),
attempts AS (
    SELECT run_id, group_id, trajectory_id, min(slot) AS slot
    FROM started GROUP BY run_id, group_id, trajectory_id
),
ended AS (
    SELECT run_id, trajectory_id FROM trajectory_finished
    UNION
    SELECT run_id, trajectory_id FROM trajectory_judged
),
listed AS (
    SELECT run_id, batch_id, log_offset, unnest(group_ids) AS group_id FROM batch_assembled
),
batched AS (
    SELECT run_id, group_id, arg_max(batch_id, log_offset) AS batch_id
    FROM listed GROUP BY run_id, group_id
),
refused AS (
    SELECT DISTINCT run_id, batch_id, true AS refused FROM batch_refused
),
said AS (
    SELECT
        attempts.run_id,
        attempts.group_id,
        attempts.slot,
        attempts.trajectory_id,
        decided.rule_set,
        batched.batch_id,
        trained.step,
        votes,
        members.reward,
        CASE
            WHEN votes AND decided.decision = 'evaluated' THEN 'evaluated'
            WHEN votes AND decided.decision = 'dropped' THEN 'dropped'
            WHEN votes AND refused THEN 'dropped'
            WHEN votes AND masked THEN 'masked'
            WHEN votes AND NOT undone THEN 'trained'
            WHEN votes AND undone THEN 'retrained'
            WHEN votes THEN 'decided'
            WHEN members.outcome = 'abandoned' THEN 'abandoned'
            WHEN decided.decision IS NOT NULL THEN 'excluded'
            WHEN ended.trajectory_id IS NOT NULL THEN 'pending'
            ELSE 'in_flight'
        END AS state,
        CASE WHEN decided.decision = 'dropped' THEN decided.drop_reason ELSE 'refused' END
            AS drop_reason,
        -- It began when the group had been decided without it.
        CASE WHEN votes IS NULL THEN 'late' ELSE members.exclusion_reason END AS exclusion_reason
    FROM attempts
    LEFT JOIN (SELECT run_id, group_id, rule_set, decision, drop_reason FROM group_decisions)
        AS decided
        ON decided.run_id = attempts.run_id AND decided.group_id = attempts.group_id
    LEFT JOIN members
        ON members.run_id = attempts.run_id
        AND members.group_id = attempts.group_id
        AND members.trajectory_id = attempts.trajectory_id
    LEFT JOIN batched
        ON batched.run_id = attempts.run_id AND batched.group_id = attempts.group_id
    LEFT JOIN trained_batches AS trained
        ON trained.run_id = attempts.run_id AND trained.batch_id = batched.batch_id
    LEFT JOIN refused
        ON refused.run_id = attempts.run_id AND refused.batch_id = batched.batch_id
    LEFT JOIN ended
        ON ended.run_id = attempts.run_id AND ended.trajectory_id = attempts.trajectory_id
),
reasoned AS (
    SELECT
        *,
        CASE
            WHEN state = 'dropped' THEN drop_reason
            WHEN state = 'excluded' THEN coalesce(exclusion_reason, 'unknown')
            WHEN state IN ('masked', 'abandoned', 'retrained') THEN state
        END AS waste_reason
    FROM said
)
SELECT
    run_id,
    group_id,
    slot,
    trajectory_id,
    -- Of its group's decision; null before that.
    rule_set,
    batch_id,
    -- That it was trained in.
    step,
    state,
    -- The exclusion or drop reason, masked, abandoned, or retrained: the step it was trained in is
    -- undone. Null where nothing was wasted, or nothing is known yet.
    waste_reason,
    CASE
        WHEN waste_reason = 'zero_variance' THEN 'no gradient'
        WHEN waste_reason IS NOT NULL THEN 'waste'
        WHEN state IN ('trained', 'evaluated') THEN 'used'
        ELSE 'open'
    END AS kind,
    -- As decided; null where it has no number.
    reward
FROM reasoned;
