-- One row per evaluation run, policy version and rule set: the share of attempts that pass, over
-- first valid attempts only. Missing slots are not failed ones: coverage and the bounds say what they
-- could change.
CREATE OR REPLACE VIEW pass_at_1 AS
WITH strata AS (
    SELECT
        run_id,
        policy_version,
        rule_set,
        stratum,
        min(stratum_weight) AS weight,
        -- One stratum, one weight; else the weighted value would be of somebody's choice.
        count(stratum_weight) = count(*) AND min(stratum_weight) = max(stratum_weight)
            AND min(stratum_weight) >= 0 AND stratum IS NOT NULL AS weighted,
        count(*) AS tasks,
        count(*) FILTER (valid > 0) AS tasks_valid,
        list(task_id ORDER BY task_id) FILTER (valid = 0) AS tasks_without_valid,
        sum(slots) AS slots,
        count(*) FILTER (slots IS NULL) AS tasks_without_size,
        sum(valid) AS valid,
        sum(passed) AS passed,
        sum(passed / valid) FILTER (valid > 0) AS rates,
        sum(coalesce(passed / slots, 0)) AS rates_if_failed,
        sum(coalesce((passed + missing) / slots, 1)) AS rates_if_passed,
        sum(superseded) AS superseded,
        sum(excluded) AS excluded,
        sum(excluded_passes) AS excluded_passes,
        flatten(list(missing_reasons)) AS missing_reasons,
        list(submitted_versions) AS submitted_versions,
        list(verifiers) AS verifiers,
        min(first_started_at) AS first_started_at,
        max(last_ended_at) AS last_ended_at
    FROM task_outcomes GROUP BY run_id, policy_version, rule_set, stratum
),
summed AS (
    SELECT
        run_id,
        policy_version,
        rule_set,
        bool_and(weighted) AND sum(weight) > 0 AS weighted,
        sum(weight * rates / tasks_valid) / sum(weight) AS weighted_rate,
        count(*) FILTER (stratum IS NOT NULL) AS strata,
        list(stratum ORDER BY stratum) FILTER (tasks_valid = 0 AND stratum IS NOT NULL)
            AS strata_without_valid,
        bool_or(tasks_valid = 0) AS any_stratum_empty,
        sum(tasks) AS tasks,
        sum(tasks_valid) AS tasks_valid,
        list_sort(flatten(list(coalesce(tasks_without_valid, [])))) AS tasks_without_valid,
        sum(slots) AS slots,
        sum(tasks_without_size) AS tasks_without_size,
        sum(valid) AS valid,
        sum(passed) AS passed,
        sum(rates) AS rates,
        sum(rates_if_failed) AS rates_if_failed,
        sum(rates_if_passed) AS rates_if_passed,
        sum(superseded) AS superseded,
        sum(excluded) AS excluded,
        sum(excluded_passes) AS excluded_passes,
        flatten(list(missing_reasons)) AS missing_reasons,
        list_sort(list_distinct(flatten(flatten(list(submitted_versions))))) AS submitted_versions,
        list_sort(list_distinct(flatten(flatten(list(verifiers))))) AS verifiers,
        min(first_started_at) AS first_started_at,
        max(last_ended_at) AS last_ended_at
    FROM strata GROUP BY run_id, policy_version, rule_set
),
-- Tasks that the run declared only by their number are as missing as those that it named. A run
-- without a task has a row, too.
scoped AS (
    SELECT
        evaluations.* EXCLUDE (tasks),
        rates,
        rates_if_failed,
        rates_if_passed,
        weighted_rate,
        weighted,
        any_stratum_empty,
        coalesce(tasks_valid, 0)::BIGINT AS tasks_valid,
        coalesce(tasks_without_valid, []) AS tasks_without_valid,
        coalesce(strata, 0) AS strata,
        coalesce(strata_without_valid, []) AS strata_without_valid,
        coalesce(valid, 0)::BIGINT AS valid,
        coalesce(passed, 0)::BIGINT AS passed,
        coalesce(superseded, 0)::BIGINT AS superseded,
        coalesce(excluded, 0)::BIGINT AS excluded,
        coalesce(excluded_passes, 0)::BIGINT AS excluded_passes,
        coalesce(missing_reasons, []) AS missing_reasons,
        coalesce(submitted_versions, []) AS submitted_versions,
        coalesce(verifiers, []) AS verifiers,
        first_started_at,
        last_ended_at,
        greatest(coalesce(evaluations.tasks, 0) - coalesce(summed.tasks, 0), 0)::BIGINT
            AS unnamed_tasks,
        nullif(coalesce(summed.tasks, 0) + unnamed_tasks, 0)::BIGINT AS scope_tasks,
        CASE
            WHEN coalesce(tasks_without_size, 0) > 0 THEN NULL
            WHEN unnamed_tasks = 0 THEN coalesce(slots, 0)
            ELSE coalesce(slots, 0) + unnamed_tasks::HUGEINT * attempts_per_task
        END AS scope_slots
    FROM evaluations
    LEFT JOIN summed ON summed.run_id = evaluations.run_id
        AND summed.policy_version IS NOT DISTINCT FROM evaluations.policy_version
        AND summed.rule_set IS NOT DISTINCT FROM evaluations.rule_set
)
SELECT
    run_id,
    policy_version,
    rule_set,
    -- Macro: the mean over tasks that have a valid attempt. Pooled: over valid attempts.
    rates / nullif(tasks_valid, 0) AS pass_at_1_macro,
    passed / nullif(valid, 0) AS pass_at_1_pooled,
    -- The mean over strata by their declared weights; null where a task has none, or a stratum has
    -- no valid task.
    CASE WHEN weighted AND NOT any_stratum_empty AND unnamed_tasks = 0 THEN weighted_rate END
        AS pass_at_1_weighted,
    -- As leaderboards count: what is missing failed, and the denominator stays.
    passed / nullif(scope_slots, 0) AS published,
    rates_if_failed / scope_tasks AS macro_if_missing_failed,
    (rates_if_passed + unnamed_tasks) / scope_tasks AS macro_if_missing_passed,
    passed / nullif(scope_slots, 0) AS pooled_if_missing_failed,
    (passed + scope_slots - valid) / nullif(scope_slots, 0) AS pooled_if_missing_passed,
    valid / nullif(scope_slots, 0) AS coverage,
    passed,
    valid,
    -- Slots of the scope: opened ones, and no fewer than declared; null when that is unknown.
    scope_slots AS slots,
    scope_slots - valid AS missing,
    coalesce(list_aggregate(missing_reasons, 'histogram'), MAP {}) AS missing_by_reason,
    scope_slots - valid - len(missing_reasons) AS never_opened,
    scope_tasks AS tasks,
    tasks_valid,
    tasks_without_valid,
    unnamed_tasks,
    strata,
    strata_without_valid,
    -- Attempts that are in no figure: behind the one that counts in their slot, or not valid; and
    -- the invalid ones that had a passing reward.
    superseded,
    excluded,
    excluded_passes,
    first_started_at,
    last_ended_at,
    submitted_versions,
    verifiers,
    name,
    parent_run_id,
    pass_threshold,
    dataset,
    split,
    subset,
    subset_sha256,
    attempts_per_task,
    temperature,
    top_p,
    top_k,
    output_cap_tokens,
    context_cap_tokens,
    turn_cap,
    clock_cap_s,
    scaffold,
    model
FROM scoped;
