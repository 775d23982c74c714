-- One row per member that voted with reward 0 where no verifier gave it one: there is no reward
-- fact, or it says that there was no verdict.
CREATE OR REPLACE VIEW fabricated_zero AS
WITH zeros AS (
    SELECT * FROM members WHERE votes AND reward = 0
)
SELECT
    zeros.run_id,
    zeros.group_id,
    zeros.slot,
    zeros.trajectory_id,
    zeros.rule_set,
    zeros.decision,
    zeros.outcome,
    zeros.cause_class,
    zeros.blame,
    zeros.reward,
    zeros.advantage,
    -- What the decision names; null: nothing.
    zeros.reward_event_id,
    CASE
        WHEN rewarded.event_id IS NULL THEN 'no reward fact'
        ELSE 'a reward fact without a value'
    END AS evidence,
    rewarded.error_type
FROM zeros
LEFT JOIN reward_assigned AS rewarded
    ON rewarded.run_id = zeros.run_id
    AND rewarded.event_id = zeros.reward_event_id
    AND rewarded.trajectory_id = zeros.trajectory_id
WHERE rewarded.value IS NULL;
