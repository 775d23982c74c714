-- One row per run and policy version: when it was published, and how the engines took it.
CREATE OR REPLACE VIEW policy_versions AS
SELECT
    run_id,
    policy_version,
    any_value(step) AS step,
    any_value(method) AS method,
    min(published_at) AS published_at,
    any_value(size_bytes) AS size_bytes,
    any_value(publish_s) AS publish_s,
    bool_or(orphaned) AS orphaned,
    count(DISTINCT engine) FILTER (success) AS engines_applied,
    count(DISTINCT engine) FILTER (NOT success) AS engines_failed,
    max(applied_at) FILTER (success) AS last_applied_at,
    max(paused_s) AS paused_s_max,
    sum(aborted_requests) AS aborted_requests,
    sum(carried_requests) AS carried_requests
FROM weight_updates
GROUP BY run_id, policy_version;
