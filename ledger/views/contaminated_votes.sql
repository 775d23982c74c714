-- One row per vote of a group in which an attempt voted that was lost through no fault of the
-- policy, and rule set that says so: its advantage as the group was decided, and what it would have
-- been without those attempts. `contamination` is the rows of those attempts alone.
CREATE OR REPLACE VIEW contaminated_votes AS
WITH blamed AS (
    SELECT DISTINCT run_id, group_id FROM trajectory_judged
    WHERE blame IN ('infrastructure', 'verifier', 'scheduler')
),
voters AS (
    SELECT * FROM members SEMI JOIN blamed USING (run_id, group_id) WHERE votes
),
newest AS (
    SELECT
        run_id,
        group_id,
        trajectory_id,
        rule_set,
        arg_max(
            {'stage': cause_stage, 'class': cause_class, 'blame': blame}, log_offset
        ) AS cause
    FROM trajectory_judged SEMI JOIN blamed USING (run_id, group_id)
    GROUP BY run_id, group_id, trajectory_id, rule_set
),
-- What the decision knew, and what the asked rule set says by now, each once.
said AS (
    SELECT
        run_id,
        group_id,
        trajectory_id,
        rule_set,
        'at_decision' AS known,
        {'stage': cause_stage, 'class': cause_class, 'blame': blame} AS cause
    FROM voters WHERE blame IN ('infrastructure', 'verifier', 'scheduler')
    UNION ALL
    SELECT
        newest.run_id,
        newest.group_id,
        newest.trajectory_id,
        newest.rule_set,
        'late_evidence',
        newest.cause
    FROM newest
    JOIN voters USING (run_id, group_id, trajectory_id)
    WHERE newest.cause.blame IN ('infrastructure', 'verifier', 'scheduler')
        AND NOT (
            newest.rule_set = voters.rule_set
            AND coalesce(voters.blame IN ('infrastructure', 'verifier', 'scheduler'), false)
        )
),
touched AS (
    SELECT DISTINCT run_id, group_id, rule_set FROM said
),
decided AS (
    SELECT
        group_id,
        log_offset AS last_offset,
        algorithm,
        try_cast(cut.configuration AS JSON) AS configuration
    FROM group_decided
),
votes AS (
    SELECT
        voters.* EXCLUDE (rule_set, cause_stage, cause_class, blame),
        touched.rule_set,
        voters.rule_set AS decision_rule_set,
        said.trajectory_id IS NOT NULL AS contaminates,
        said.known,
        said.cause,
        -- What no assembler would compute with is no reward.
        CASE WHEN abs(reward) <= 1e100 THEN reward END AS score
    FROM touched
    JOIN voters USING (run_id, group_id)
    LEFT JOIN said
        ON said.run_id = voters.run_id
        AND said.group_id = voters.group_id
        AND said.trajectory_id = voters.trajectory_id
        AND said.rule_set = touched.rule_set
),
together AS (
    SELECT
        run_id,
        group_id,
        rule_set,
        count(*) AS votes_with,
        count(*) FILTER (NOT contaminates) AS votes_without,
        avg(score) AS mean_with,
        avg(score) FILTER (NOT contaminates) AS mean_without,
        stddev_samp(score) AS std_with,
        stddev_samp(score) FILTER (NOT contaminates) AS std_without,
        max(score) FILTER (NOT contaminates)
        - min(score) FILTER (NOT contaminates) AS spread_without,
        coalesce(bool_and(masked) FILTER (NOT contaminates), true) AS all_masked
    FROM votes GROUP BY run_id, group_id, rule_set
),
listed AS (
    SELECT run_id, step, batch_id, log_offset, unnest(group_ids) AS group_id FROM batch_assembled
),
batched AS (
    SELECT
        run_id,
        group_id,
        arg_max(step, log_offset) AS step,
        arg_max(batch_id, log_offset) AS batch_id
    FROM listed GROUP BY run_id, group_id
),
-- The rules of the assembler, in its order, by the settings that it decided with.
tested AS (
    SELECT
        votes.*,
        together.* EXCLUDE (run_id, group_id, rule_set),
        decided.algorithm,
        batched.step,
        batched.batch_id,
        CASE
            WHEN votes.decision <> 'batch' THEN NULL
            WHEN configuration ->> 'on_infra_failure' = 'drop_group'
                AND votes_without < expected_size THEN 'group_policy'
            WHEN votes_without < coalesce(
                try_cast(configuration ->> 'min_valid' AS BIGINT),
                greatest(2, (expected_size::HUGEINT + 1) // 2)
            ) THEN 'too_few_valid'
            WHEN coalesce(spread_without <= 1e-6, true) THEN 'zero_variance'
            WHEN all_masked THEN 'group_policy'
        END AS would_be_dropped
    FROM votes
    JOIN together USING (run_id, group_id, rule_set)
    JOIN group_decisions USING (run_id, group_id)
    JOIN decided USING (group_id, last_offset)
    LEFT JOIN opened_groups USING (run_id, group_id)
    LEFT JOIN batched USING (run_id, group_id)
)
SELECT
    run_id,
    -- Null while the group is in no batch.
    step,
    batch_id,
    group_id,
    slot,
    trajectory_id,
    rule_set,
    -- The one by which the group was decided.
    decision_rule_set,
    contaminates,
    -- Whether the decision knew that it was lost: `at_decision`, which must never be, or
    -- `late_evidence`, by the newest judgement. Null for the other votes.
    known,
    cause.stage AS cause_stage,
    cause.class AS cause_class,
    cause.blame AS blame,
    reward,
    masked,
    decision,
    algorithm,
    votes_with,
    votes_without,
    mean_with,
    mean_without,
    std_with,
    std_without,
    -- As decided; null in a group that was dropped or is of an evaluation.
    advantage AS advantage_with,
    CASE
        WHEN contaminates OR decision <> 'batch' OR would_be_dropped IS NOT NULL THEN NULL
        WHEN algorithm = 'grpo' THEN (score - mean_without) / (std_without + 1e-6)
        WHEN algorithm = 'dr_grpo' THEN score - mean_without
        WHEN algorithm = 'rloo'
            THEN (score - mean_without) * votes_without / (votes_without - 1)
    END AS advantage_without,
    -- Why a group for a batch would have been dropped without those attempts; null: it would not.
    would_be_dropped
FROM tested;
