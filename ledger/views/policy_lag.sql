-- One row per attempt that was trained on: which policy versions it was submitted, sampled and
-- consumed under, and so how old it was. A lag in versions is split into what passed while it was
-- in flight and what passed while it was in the queue; the two add up to the whole.
CREATE OR REPLACE VIEW policy_lag AS
WITH used AS (
    SELECT run_id, group_id, slot, trajectory_id, batch_id
    FROM trajectory_uses WHERE state = 'trained'
),
turned AS (
    SELECT
        run_id,
        trajectory_id,
        turn_no,
        engine,
        cached_tokens,
        occurred_at,
        occurred_at - to_microseconds(
            CASE WHEN client_s BETWEEN 0 AND 31536000 THEN (client_s * 1e6)::BIGINT ELSE 0 END
        ) AS asked_at,
        -- As large numbers: a difference of two of a foreign writer's must not break the view.
        list_min(list_transform(version_spans, lambda span: span.policy_version))::HUGEINT
            AS oldest_version,
        list_min(
            list_transform(
                version_spans, lambda span: {'at': span.start, 'version': span.policy_version}
            )
        ).version::HUGEINT AS first_version,
        list_max(
            list_transform(
                version_spans, lambda span: {'at': span.start, 'version': span.policy_version}
            )
        ).version::HUGEINT AS last_version
    FROM turn_completed
    SEMI JOIN used USING (run_id, trajectory_id)
),
sampled AS (
    SELECT
        run_id,
        trajectory_id,
        count(*) AS turns,
        count(*) FILTER (first_version IS NULL) AS turns_unversioned,
        arg_min(first_version, turn_no) AS first_token_version,
        arg_max(last_version, turn_no) AS last_token_version,
        min(oldest_version) AS oldest_version,
        count(*) FILTER (cached_tokens IS NULL OR engine IS NULL OR asked_at IS NULL)
            AS turns_uncached_unknown
    FROM turned GROUP BY run_id, trajectory_id
),
-- A prefix that was cached may be as old as the engine's cache: since it was last flushed, or else
-- since the first version that the run saw of the engine.
cached AS (
    SELECT run_id, trajectory_id, engine, min(asked_at) AS asked_at
    FROM turned WHERE cached_tokens > 0 GROUP BY run_id, trajectory_id, engine
),
flushed AS (
    SELECT run_id, engine, occurred_at, policy_version
    FROM weights_applied WHERE success AND cache_flushed AND occurred_at IS NOT NULL
),
first_seen AS (
    SELECT run_id, engine, min(oldest_version) AS oldest_version
    FROM turned GROUP BY run_id, engine
),
kept AS (
    SELECT
        cached.run_id,
        cached.trajectory_id,
        min(coalesce(flushed.policy_version, first_seen.oldest_version)) AS oldest_cached_version
    FROM cached
    ASOF LEFT JOIN flushed
        ON flushed.run_id = cached.run_id
        AND flushed.engine = cached.engine
        AND flushed.occurred_at <= cached.asked_at
    LEFT JOIN first_seen
        ON first_seen.run_id = cached.run_id AND first_seen.engine = cached.engine
    GROUP BY cached.run_id, cached.trajectory_id
)
SELECT
    used.run_id,
    trained.step,
    used.batch_id,
    used.group_id,
    used.slot,
    used.trajectory_id,
    -- The newest published when its group was submitted.
    opened_groups.policy_version AS submitted_version,
    first_token_version,
    last_token_version,
    oldest_version,
    -- The oldest that may have computed a key or value which it read. Null where an engine didn't
    -- say what it had cached.
    CASE
        WHEN turns_uncached_unknown = 0 THEN least(oldest_version, oldest_cached_version)
    END AS oldest_kv_version,
    -- That the step trained from.
    trained.from_version AS consumed_version,
    trained.from_version - oldest_version AS lag,
    last_token_version - oldest_version AS lag_in_flight,
    trained.from_version - last_token_version AS lag_in_queue,
    trained.from_version - opened_groups.policy_version::HUGEINT AS lag_since_submitted,
    CASE
        WHEN turns_uncached_unknown = 0
            THEN trained.from_version - least(oldest_version, oldest_cached_version)
    END AS kv_lag,
    turns,
    -- Whose versions nobody told; they are left out of all versions above.
    turns_unversioned
FROM used
JOIN trained_batches AS trained USING (run_id, batch_id)
LEFT JOIN opened_groups USING (run_id, group_id)
LEFT JOIN sampled USING (run_id, trajectory_id)
LEFT JOIN kept USING (run_id, trajectory_id);
