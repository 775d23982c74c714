-- One row per run, rule set and policy version by which attempts had their first token: the share of
-- them that was excluded.
SELECT
    run_id,
    printf('policy version %d, rule set %d', policy_version, rule_set) AS subject,
    excluded_share AS value,
    judged::BIGINT AS out_of
FROM exclusions_by_version
WHERE version_when = 'first_token' AND policy_version IS NOT NULL;
