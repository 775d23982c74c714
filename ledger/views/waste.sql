-- One row per run and what became of its attempts: tokens, engine GPU-seconds and sandbox-seconds,
-- by one reason for each attempt. Time in which no request ran is the row `idle`; the rows of a
-- cluster of engines sum to its declared GPU-seconds. Attributed, not saved.
CREATE OR REPLACE VIEW waste AS
WITH turned AS (
    SELECT
        run_id,
        trajectory_id,
        sum(completion_tokens) AS generated_tokens,
        sum(prompt_tokens::HUGEINT - coalesce(cached_tokens, 0)) AS prefilled_tokens
    FROM (
        SELECT run_id, trajectory_id, completion_tokens, prompt_tokens, cached_tokens
        FROM turn_completed
        UNION ALL
        SELECT run_id, trajectory_id, tokens_so_far, NULL, NULL FROM turn_failed
    ) GROUP BY run_id, trajectory_id
),
stopped AS (
    SELECT run_id, trajectory_id, try_no, max(occurred_at) AS ended_at, max(lifetime_s) AS up_s
    FROM sandbox_stopped GROUP BY run_id, trajectory_id, try_no
),
lost AS (
    SELECT run_id, trajectory_id, try_no, max(occurred_at) AS ended_at, sum(seconds) AS tried_s
    FROM sandbox_failed GROUP BY run_id, trajectory_id, try_no
),
up AS (
    SELECT run_id, trajectory_id, try_no, min(occurred_at) AS started_at
    FROM sandbox_started GROUP BY run_id, trajectory_id, try_no
),
boxed AS (
    SELECT
        run_id,
        trajectory_id,
        sum(
            coalesce(
                up_s,
                date_diff('microsecond', started_at, coalesce(stopped.ended_at, lost.ended_at))
                / 1e6,
                tried_s
            )
        ) AS sandbox_s,
        count(*) FILTER (
            up_s IS NULL AND tried_s IS NULL
            AND (started_at IS NULL OR coalesce(stopped.ended_at, lost.ended_at) IS NULL)
        ) AS sandboxes_untimed
    FROM up
    FULL JOIN stopped USING (run_id, trajectory_id, try_no)
    FULL JOIN lost USING (run_id, trajectory_id, try_no)
    GROUP BY run_id, trajectory_id
),
spent AS (
    SELECT
        run_id,
        coalesce(kind, 'open') AS kind,
        -- Requests of an attempt that nobody started belong to no group.
        coalesce(waste_reason, state, 'never_started') AS reason,
        count(*) AS trajectories,
        sum(generated_tokens) AS generated_tokens,
        sum(prefilled_tokens) AS prefilled_tokens,
        sum(gpu_s) AS gpu_s,
        sum(gpu_s_by_tokens) AS gpu_s_by_tokens,
        sum(sandbox_s) AS sandbox_s,
        sum(sandboxes_untimed) AS sandboxes_untimed
    FROM trajectory_uses
    FULL JOIN gpu_shares USING (run_id, trajectory_id)
    LEFT JOIN turned USING (run_id, trajectory_id)
    LEFT JOIN boxed USING (run_id, trajectory_id)
    GROUP BY ALL
),
again AS (
    SELECT run_id, 'retrained' AS reason, sum(undone_s) AS trainer_s
    FROM trained_batches GROUP BY run_id HAVING sum(steps_undone) > 0
),
of_cluster AS (
    SELECT DISTINCT unnest(run_ids) AS run_id, cluster_id FROM gpu_spans
),
declared AS (
    SELECT cluster_id, run_ids, declared_gpu_s
    FROM (SELECT cluster_id, list(run_id) AS run_ids FROM of_cluster GROUP BY cluster_id)
    JOIN (SELECT cluster_id, sum(gpu_s) AS declared_gpu_s FROM gpu_spans GROUP BY cluster_id)
        USING (cluster_id)
),
of_runs AS (
    SELECT
        coalesce(of_cluster.cluster_id, run_id) AS cluster_id,
        run_id,
        coalesce(spent.kind, 'waste') AS kind,
        reason,
        coalesce(trajectories, 0) AS trajectories,
        generated_tokens,
        prefilled_tokens,
        CASE WHEN of_cluster.cluster_id IS NOT NULL THEN coalesce(gpu_s, 0) END AS gpu_s,
        CASE WHEN of_cluster.cluster_id IS NOT NULL THEN coalesce(gpu_s_by_tokens, 0) END
            AS gpu_s_by_tokens,
        sandbox_s,
        sandboxes_untimed,
        trainer_s
    FROM spent
    FULL JOIN again USING (run_id, reason)
    LEFT JOIN of_cluster USING (run_id)
),
attributed AS (
    SELECT cluster_id, sum(gpu_s) AS gpu_s, sum(gpu_s_by_tokens) AS gpu_s_by_tokens
    FROM of_runs GROUP BY cluster_id
),
with_idle AS (
    FROM of_runs
    UNION ALL
    SELECT
        cluster_id,
        CASE WHEN len(run_ids) = 1 THEN run_ids[1] END,
        'idle',
        'idle',
        NULL,
        NULL,
        NULL,
        declared_gpu_s - coalesce(gpu_s, 0),
        declared_gpu_s - coalesce(gpu_s_by_tokens, 0),
        NULL,
        NULL,
        NULL
    FROM declared LEFT JOIN attributed USING (cluster_id)
)
SELECT
    cluster_id,
    -- Null: idle time of engines that serve several runs.
    run_id,
    -- used, waste, no gradient (rewards that prefer nothing), open (may still be used) or idle.
    kind,
    reason,
    trajectories,
    generated_tokens,
    -- Prompts without what the engine had cached.
    prefilled_tokens,
    -- Null while no engine GPUs are declared.
    gpu_s,
    gpu_s_by_tokens,
    declared_gpu_s,
    gpu_s / declared_gpu_s AS share_of_gpu_s,
    sandbox_s,
    -- Sandboxes of unknown lifetime, such as those that are up: they are left out.
    sandboxes_untimed,
    -- Of the trainer, in steps that were done in vain.
    trainer_s
FROM with_idle
LEFT JOIN declared USING (cluster_id);
