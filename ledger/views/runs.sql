-- One row per run: its scope as last declared, and how much of it the book has.
CREATE OR REPLACE VIEW runs AS
WITH opened AS (
    SELECT run_id, count(*) AS groups, sum(expected_size) AS slots
    FROM opened_groups GROUP BY run_id
),
started AS (
    SELECT run_id, count(*) AS trajectories_started, min(occurred_at) AS first_started_at
    FROM trajectory_started GROUP BY run_id
),
finished AS (
    SELECT run_id, count(*) AS trajectories_finished, max(occurred_at) AS last_finished_at
    FROM trajectory_finished GROUP BY run_id
),
stepped AS (
    SELECT run_id, count(*) AS steps, max(to_version) AS policy_version
    FROM step_completed GROUP BY run_id
),
resources AS (
    SELECT run_id, count(*) AS resource_declarations FROM resources_declared GROUP BY run_id
)
SELECT
    run_id,
    name,
    kind,
    occurred_at AS declared_at,
    parent_run_id,
    parent_policy_version,
    pass_threshold,
    dataset,
    split,
    subset,
    subset_sha256,
    tasks,
    attempts_per_task,
    temperature,
    context_cap_tokens,
    turn_cap,
    scaffold,
    model,
    coalesce(groups, 0) AS groups,
    coalesce(slots, 0) AS slots,
    coalesce(trajectories_started, 0) AS trajectories_started,
    coalesce(trajectories_finished, 0) AS trajectories_finished,
    coalesce(steps, 0) AS steps,
    policy_version,
    first_started_at,
    last_finished_at,
    coalesce(resource_declarations, 0) AS resource_declarations,
    configuration
FROM scopes
LEFT JOIN opened USING (run_id)
LEFT JOIN started USING (run_id)
LEFT JOIN finished USING (run_id)
LEFT JOIN stepped USING (run_id)
LEFT JOIN resources USING (run_id);
