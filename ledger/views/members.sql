-- One row per member of a decided group: what the last decision says of it, and the judgement that
-- the first one used, which is the newest by its rule set that it had read or made itself.
CREATE OR REPLACE VIEW members AS
WITH listed AS (
    SELECT
        group_id,
        log_offset AS last_offset,
        unnest(members) AS member,
        generate_subscripts(members, 1) AS member_no
    FROM group_decided
),
judged AS (
    SELECT
        group_id,
        trajectory_id,
        arg_max(
            {
                'outcome': outcome,
                'cause_stage': cause_stage,
                'cause_class': cause_class,
                'blame': blame,
                'trainable': trainable
            },
            log_offset
        ) AS judgement
    FROM trajectory_judged
    JOIN group_decisions USING (group_id, rule_set)
    WHERE log_offset < read_to OR (log_offset < first_offset AND incarnation = decided_by)
    GROUP BY group_id, trajectory_id
)
SELECT
    run_id,
    group_id,
    member.slot AS slot,
    -- From 1, by slot and then by start.
    member_no,
    member.trajectory_id AS trajectory_id,
    decision,
    drop_reason,
    member.votes AS votes,
    member.exclusion_reason AS exclusion_reason,
    member.masked AS masked,
    member.reward_event_id AS reward_event_id,
    member.reward AS reward,
    member.advantage AS advantage,
    member.tokens_verified AS tokens_verified,
    rule_set,
    judgement.outcome AS outcome,
    judgement.cause_stage AS cause_stage,
    judgement.cause_class AS cause_class,
    judgement.blame AS blame,
    judgement.trainable AS trainable
FROM listed
JOIN group_decisions USING (group_id, last_offset)
LEFT JOIN judged ON judged.group_id = listed.group_id
    AND judged.trajectory_id = listed.member.trajectory_id;
