-- One row per run: how much of which data its training consumed, and the run that it went on from.
-- A training run consumes tasks, fine-tuning the traces of other runs, an evaluation nothing.
CREATE OR REPLACE VIEW dataset_use AS
WITH attempts AS (
    SELECT run_id, trajectory_id, any_value(task_id) AS task_id
    FROM trajectory_started GROUP BY run_id, trajectory_id
),
tried AS (
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
listed AS (
    SELECT run_id, batch_id, unnest(trace_ids) AS trace_id FROM batch_assembled
),
traces AS (
    SELECT
        listed.run_id,
        count(*) AS trace_uses,
        count(DISTINCT listed.trace_id) AS traces_trained,
        count(DISTINCT attempts.task_id) AS trace_tasks,
        count(DISTINCT listed.trace_id) FILTER (attempts.trajectory_id IS NULL) AS traces_unknown,
        list(DISTINCT attempts.run_id ORDER BY attempts.run_id)
            FILTER (attempts.run_id IS NOT NULL) AS trace_run_ids
    FROM listed
    JOIN trained_batches
        ON trained_batches.run_id = listed.run_id
        AND trained_batches.batch_id = listed.batch_id
        AND NOT undone
    LEFT JOIN attempts ON attempts.trajectory_id = try_cast(listed.trace_id AS UUID)
    GROUP BY listed.run_id
),
steps_done AS (
    SELECT run_id, count(DISTINCT step) AS steps FROM step_completed GROUP BY run_id
)
SELECT
    runs.run_id,
    runs.name,
    runs.kind,
    runs.parent_run_id,
    parent.name AS parent_name,
    parent.kind AS parent_kind,
    runs.parent_policy_version,
    runs.dataset,
    runs.split,
    runs.subset,
    runs.subset_sha256,
    -- Null where the scope doesn't say.
    runs.tasks AS tasks_declared,
    coalesce(steps_done.steps, 0) AS steps,
    coalesce(tasks_tried, 0) AS tasks_tried,
    coalesce(groups_opened, 0) AS groups_opened,
    coalesce(tasks_trained, 0) AS tasks_trained,
    coalesce(groups_trained, 0) AS groups_trained,
    coalesce(trajectories_trained, 0) AS trajectories_trained,
    coalesce(traces_trained, 0) AS traces_trained,
    -- More than traces where some were trained on again.
    coalesce(trace_uses, 0) AS trace_uses,
    -- That the traces are attempts at.
    coalesce(trace_tasks, 0) AS trace_tasks,
    -- Whose attempts the book doesn't have.
    coalesce(traces_unknown, 0) AS traces_unknown,
    trace_run_ids
FROM runs
LEFT JOIN (SELECT run_id, name, kind FROM runs) AS parent ON parent.run_id = runs.parent_run_id
LEFT JOIN tried ON tried.run_id = runs.run_id
LEFT JOIN trained ON trained.run_id = runs.run_id
LEFT JOIN traces ON traces.run_id = runs.run_id
LEFT JOIN steps_done ON steps_done.run_id = runs.run_id;
