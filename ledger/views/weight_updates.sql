-- One row per policy version and engine that took it or failed to (engine null: none did yet).
CREATE OR REPLACE VIEW weight_updates AS
WITH versions AS (
    SELECT run_id, policy_version FROM weights_published
    UNION SELECT run_id, policy_version FROM weights_applied
),
published AS (
    SELECT
        run_id,
        policy_version,
        min(occurred_at) AS published_at,
        any_value(step) AS step,
        any_value(method) AS method,
        any_value(size_bytes) AS size_bytes,
        any_value(publish_s) AS publish_s
    FROM weights_published GROUP BY run_id, policy_version
),
orphaned AS (
    SELECT DISTINCT run_id, policy_version, true AS orphaned FROM weights_orphaned
)
SELECT
    run_id,
    policy_version,
    step,
    coalesce(published.method, applied.method) AS method,
    published_at,
    size_bytes,
    publish_s,
    coalesce(orphaned, false) AS orphaned,
    engine,
    applied.occurred_at AS applied_at,
    success,
    pause_mode,
    cache_flushed,
    paused_s,
    apply_s,
    aborted_requests,
    carried_requests,
    error_type
FROM versions
LEFT JOIN published USING (run_id, policy_version)
LEFT JOIN orphaned USING (run_id, policy_version)
LEFT JOIN weights_applied AS applied USING (run_id, policy_version);
