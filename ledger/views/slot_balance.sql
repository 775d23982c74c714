-- One row per opened group: its slots by what they have come to. Summed by run or by step, it is
-- the balance of that.
CREATE OR REPLACE VIEW slot_balance AS
WITH counted AS (
    SELECT
        group_id,
        any_value(step) AS step,
        any_value(batch_id) AS batch_id,
        count(*) AS slots,
        count(*) FILTER (disposition = 'never_started') AS never_started,
        count(*) FILTER (disposition = 'in_flight') AS in_flight,
        count(*) FILTER (disposition = 'pending') AS pending,
        count(*) FILTER (disposition = 'decided') AS decided,
        count(*) FILTER (disposition = 'trained') AS trained,
        count(*) FILTER (disposition = 'masked') AS masked,
        count(*) FILTER (disposition = 'evaluated') AS evaluated,
        count(*) FILTER (disposition = 'excluded') AS excluded,
        count(*) FILTER (disposition = 'dropped') AS dropped,
        count(*) FILTER (disposition = 'abandoned') AS abandoned
    FROM dispositions GROUP BY group_id
)
SELECT
    run_id,
    -- The step of its batch; while it is in none, the one that it was sampled for.
    coalesce(step, target_step) AS step,
    group_id,
    task_id,
    batch_id,
    expected_size,
    coalesce(slots, 0) AS slots,
    coalesce(never_started, 0) AS never_started,
    coalesce(in_flight, 0) AS in_flight,
    coalesce(pending, 0) AS pending,
    coalesce(decided, 0) AS decided,
    coalesce(trained, 0) AS trained,
    coalesce(masked, 0) AS masked,
    coalesce(evaluated, 0) AS evaluated,
    coalesce(excluded, 0) AS excluded,
    coalesce(dropped, 0) AS dropped,
    coalesce(abandoned, 0) AS abandoned
FROM opened_groups
LEFT JOIN counted USING (group_id);
