-- One row per run, rule set and policy version, twice: by the version when an attempt was submitted
-- and by that of its first token. A policy that learns to be excluded shows here.
CREATE OR REPLACE VIEW exclusions_by_version AS
WITH first_tokens AS (
    SELECT
        run_id,
        trajectory_id,
        arg_min(
            list_min(
                list_transform(
                    version_spans, lambda span: {'at': span.start, 'version': span.policy_version}
                )
            ).version,
            turn_no
        ) AS policy_version
    FROM turn_completed WHERE len(version_spans) > 0 GROUP BY run_id, trajectory_id
),
judged AS (
    SELECT
        judgements.run_id,
        rule_set,
        trainable,
        blame,
        opened_groups.policy_version AS submitted_version,
        first_tokens.policy_version AS first_token_version
    FROM judgements
    LEFT JOIN opened_groups
        ON opened_groups.run_id = judgements.run_id
        AND opened_groups.group_id = judgements.group_id
    LEFT JOIN first_tokens
        ON first_tokens.run_id = judgements.run_id
        AND first_tokens.trajectory_id = judgements.trajectory_id
),
both_ways AS (
    SELECT *, 'submitted' AS version_when, submitted_version AS policy_version FROM judged
    UNION ALL
    SELECT *, 'first_token', first_token_version FROM judged
)
SELECT
    run_id,
    rule_set,
    version_when,
    -- Null: unknown, or it ended before its first token.
    policy_version,
    count(*) AS judged,
    count(*) FILTER (NOT trainable) AS excluded,
    count(*) FILTER (NOT trainable) / count(*) AS excluded_share,
    count(*) FILTER (NOT trainable AND blame = 'infrastructure') AS infrastructure,
    count(*) FILTER (NOT trainable AND blame = 'verifier') AS verifier,
    count(*) FILTER (NOT trainable AND blame = 'scheduler') AS scheduler,
    count(*) FILTER (NOT trainable AND blame = 'task') AS task,
    count(*) FILTER (NOT trainable AND blame = 'unknown') AS unknown,
    -- Nothing but a reward was missing.
    count(*) FILTER (NOT trainable AND coalesce(blame = 'policy', true)) AS reward_missing,
    count(*) FILTER (NOT trainable AND first_token_version IS NOT NULL)
        AS excluded_after_first_token
FROM both_ways
GROUP BY run_id, rule_set, version_when, policy_version;
