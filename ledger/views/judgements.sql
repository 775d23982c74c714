-- One row per attempt and rule set that judged it: its newest judgement. Judging again appends.
CREATE OR REPLACE VIEW judgements AS
WITH newest AS (
    SELECT
        run_id,
        group_id,
        trajectory_id,
        rule_set,
        arg_max(
            {
                'slot': slot,
                'occurred_at': occurred_at,
                'outcome': outcome,
                'cause_stage': cause_stage,
                'cause_class': cause_class,
                'blame': blame,
                'trainable': trainable,
                'errors': errors
            },
            log_offset
        ) AS said
    FROM trajectory_judged GROUP BY run_id, group_id, trajectory_id, rule_set
)
SELECT
    run_id,
    group_id,
    said.slot AS slot,
    trajectory_id,
    rule_set,
    -- When the attempt ended.
    said.occurred_at AS ended_at,
    said.outcome AS outcome,
    said.cause_stage AS cause_stage,
    said.cause_class AS cause_class,
    said.blame AS blame,
    said.trainable AS trainable,
    -- Every error inside it, also those that it outlived.
    said.errors AS errors
FROM newest;
