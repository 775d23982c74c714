-- One row per try at starting a sandbox, setting it up, or verifying an attempt: of which backend,
-- template and vCPUs it was, how long it took, and whether it failed.
CREATE OR REPLACE VIEW sandbox_uses AS
WITH vcpus AS (
    -- A sandbox that never came up had as many as its like, if these had all the same.
    SELECT
        run_id,
        backend,
        template,
        CASE WHEN min(vcpus) = max(vcpus) THEN min(vcpus) END AS vcpus
    FROM sandbox_started GROUP BY run_id, backend, template
),
last_sandbox AS (
    SELECT
        run_id,
        trajectory_id,
        arg_max({'backend': backend, 'template': template, 'vcpus': vcpus}, try_no) AS sandbox
    FROM sandbox_started GROUP BY run_id, trajectory_id
),
tries AS (
    SELECT
        run_id, 'sandbox_start' AS stage, backend, template, vcpus, occurred_at, start_s AS seconds,
        false AS failed
    FROM sandbox_started
    UNION ALL
    SELECT run_id, 'setup', backend, template, NULL, occurred_at, setup_s, false
    FROM sandbox_prepared
    UNION ALL
    SELECT run_id, stage, backend, template, NULL, occurred_at, seconds, true
    FROM sandbox_failed WHERE stage IN ('sandbox_start', 'setup')
    UNION ALL
    SELECT
        run_id,
        'verify',
        sandbox.backend,
        sandbox.template,
        sandbox.vcpus,
        occurred_at,
        verify_s,
        value IS NULL
    FROM reward_assigned LEFT JOIN last_sandbox USING (run_id, trajectory_id)
)
SELECT
    tries.run_id,
    stage,
    tries.backend,
    tries.template,
    coalesce(tries.vcpus, vcpus.vcpus) AS vcpus,
    date_trunc('hour', occurred_at) AS hour,
    seconds,
    failed
FROM tries
LEFT JOIN vcpus
    ON vcpus.run_id = tries.run_id
    AND vcpus.backend IS NOT DISTINCT FROM tries.backend
    AND vcpus.template IS NOT DISTINCT FROM tries.template;
