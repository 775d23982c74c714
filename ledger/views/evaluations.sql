-- One row per evaluation run, policy version and rule set: the scope that its figures are about.
CREATE OR REPLACE VIEW evaluations AS
WITH
-- The rule set is null while none has judged the run.
judged_by AS (
    SELECT DISTINCT run_id, rule_set FROM trajectory_judged
),
submitted AS (
    SELECT DISTINCT run_id, policy_version FROM opened_groups
)
SELECT DISTINCT
    run_id,
    -- The version that the run declares to evaluate; where it declares none, those that were newest
    -- when its groups were submitted.
    coalesce(parent_policy_version, submitted.policy_version) AS policy_version,
    rule_set,
    name,
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
    top_p,
    top_k,
    output_cap_tokens,
    context_cap_tokens,
    turn_cap,
    clock_cap_s,
    scaffold,
    model
FROM scopes
LEFT JOIN judged_by USING (run_id)
LEFT JOIN submitted USING (run_id)
WHERE kind = 'eval';
