-- One row per run: how much of which data its training consumed, and the run that it went on from.
-- A training run consumes tasks, fine-tuning the traces of other runs, an evaluation nothing.
CREATE OR REPLACE VIEW dataset_use AS
WITH listed AS (
    SELECT run_id, batch_id, unnest(trace_ids) AS trace_id FROM batch_assembled
),
-- Of all attempts, few are traces.
attempts AS (
    SELECT run_id, trajectory_id, min(task_id) AS task_id
    FROM trajectory_started
    WHERE trajectory_id IN (SELECT try_cast(trace_id AS UUID) FROM listed)
    GROUP BY run_id, trajectory_id
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
)
SELECT
    scopes.run_id,
    scopes.name,
    scopes.kind,
    scopes.parent_run_id,
    parent.name AS parent_name,
    parent.kind AS parent_kind,
    scopes.parent_policy_version,
    scopes.dataset,
    scopes.split,
    scopes.subset,
    scopes.subset_sha256,
    -- Null where the scope doesn't say.
    scopes.tasks AS tasks_declared,
    coalesce(used.steps, 0) AS steps,
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
FROM scopes
LEFT JOIN scopes AS parent ON parent.run_id = scopes.parent_run_id
LEFT JOIN data_used AS used ON used.run_id = scopes.run_id
LEFT JOIN traces ON traces.run_id = scopes.run_id;
