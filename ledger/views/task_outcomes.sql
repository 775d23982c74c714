-- One row per task of an evaluation run, policy version and rule set: its slots by their outcome.
-- Every task of the scope has a row, also one that was never submitted.
CREATE OR REPLACE VIEW task_outcomes AS
WITH counted AS (
    SELECT
        run_id,
        policy_version,
        rule_set,
        task_id,
        count(*) AS slots,
        count(trajectory_id) AS valid,
        count(*) FILTER (passed) AS passed,
        sum(superseded) AS superseded,
        sum(excluded) AS excluded,
        sum(excluded_passes) AS excluded_passes,
        list(missing_reason ORDER BY missing_reason) FILTER (missing_reason IS NOT NULL)
            AS missing_reasons,
        list(DISTINCT submitted_version ORDER BY submitted_version) AS submitted_versions,
        list(DISTINCT concat_ws(' ', verifier, verifier_version)
            ORDER BY concat_ws(' ', verifier, verifier_version))
            FILTER (trajectory_id IS NOT NULL) AS verifiers,
        min(first_started_at) AS first_started_at,
        max(last_ended_at) AS last_ended_at
    FROM slot_outcomes GROUP BY run_id, policy_version, rule_set, task_id
),
declared AS (
    SELECT run_id, task_id, stratum, stratum_weight FROM task_declared
    QUALIFY row_number()
        OVER (PARTITION BY run_id, task_id ORDER BY log_time DESC, log_offset DESC) = 1
),
in_scope AS (
    SELECT run_id, task_id FROM declared
    UNION SELECT run_id, task_id FROM opened_groups
)
SELECT
    evaluations.run_id,
    evaluations.policy_version,
    evaluations.rule_set,
    in_scope.task_id,
    stratum,
    stratum_weight,
    -- Those that were opened, and no fewer than declared; null when neither is known.
    greatest(counted.slots, attempts_per_task) AS slots,
    coalesce(valid, 0)::BIGINT AS valid,
    coalesce(passed, 0)::BIGINT AS passed,
    greatest(counted.slots, attempts_per_task) - coalesce(valid, 0)::BIGINT AS missing,
    coalesce(superseded, 0)::BIGINT AS superseded,
    coalesce(excluded, 0)::BIGINT AS excluded,
    coalesce(excluded_passes, 0)::BIGINT AS excluded_passes,
    -- One for each slot that was opened and is missing.
    coalesce(missing_reasons, []) AS missing_reasons,
    coalesce(submitted_versions, []) AS submitted_versions,
    coalesce(verifiers, []) AS verifiers,
    first_started_at,
    last_ended_at
-- A run of several versions owes each of them every task.
FROM evaluations
JOIN in_scope ON in_scope.run_id = evaluations.run_id
LEFT JOIN declared ON declared.run_id = evaluations.run_id AND declared.task_id = in_scope.task_id
LEFT JOIN counted ON counted.run_id = evaluations.run_id AND counted.task_id = in_scope.task_id
    AND counted.policy_version IS NOT DISTINCT FROM evaluations.policy_version
    AND counted.rule_set IS NOT DISTINCT FROM evaluations.rule_set;
