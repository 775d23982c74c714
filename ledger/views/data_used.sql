-- One row per run that opened a group, trained or did a step: how much data of its own it used.
CREATE OR REPLACE VIEW data_used AS
WITH tried AS (
    SELECT
        run_id,
        count(DISTINCT task_id) AS tasks_tried,
        count(*) AS groups_opened
    FROM opened_groups GROUP BY run_id
),
trained AS (
    SELECT
        uses.run_id,
        count(DISTINCT opened_groups.task_id) AS tasks_trained,
        count(DISTINCT uses.group_id) AS groups_trained,
        count(*) AS trajectories_trained
    FROM trajectory_uses AS uses
    LEFT JOIN opened_groups
        ON opened_groups.run_id = uses.run_id AND opened_groups.group_id = uses.group_id
    WHERE state = 'trained'
    GROUP BY uses.run_id
),
steps_done AS (
    SELECT run_id, count(DISTINCT step) AS steps FROM step_completed GROUP BY run_id
)
SELECT
    run_id,
    coalesce(steps, 0) AS steps,
    coalesce(tasks_tried, 0) AS tasks_tried,
    coalesce(groups_opened, 0) AS groups_opened,
    coalesce(tasks_trained, 0) AS tasks_trained,
    coalesce(groups_trained, 0) AS groups_trained,
    coalesce(trajectories_trained, 0) AS trajectories_trained
FROM steps_done
FULL JOIN tried USING (run_id)
FULL JOIN trained USING (run_id);
