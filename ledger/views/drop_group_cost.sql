-- One row per run, rule set and group size: the share of groups that a policy of dropping every
-- group with a lost member loses. Counted, and as it would be if members were lost independently
-- of one another: 1 - (1 - p)^n.
CREATE OR REPLACE VIEW drop_group_cost AS
WITH slots AS (
    SELECT
        run_id,
        rule_set,
        group_id,
        slot,
        -- Of several attempts in a slot it takes all to lose it.
        bool_and(coalesce(blame <> 'policy', false)) AS lost
    FROM judgements GROUP BY run_id, rule_set, group_id, slot
),
by_group AS (
    SELECT
        slots.run_id,
        rule_set,
        group_id,
        expected_size,
        count(*) AS judged,
        count(*) FILTER (lost) AS lost
    FROM slots
    JOIN opened_groups USING (group_id)
    GROUP BY slots.run_id, rule_set, group_id, expected_size
)
SELECT
    run_id,
    rule_set,
    expected_size,
    -- Of which every slot was judged; others are left out.
    count(*) AS groups,
    sum(judged) AS slots,
    sum(lost) AS slots_lost,
    sum(lost) / sum(judged) AS share_of_slots,
    count(*) FILTER (lost > 0) AS groups_hit,
    count(*) FILTER (lost > 0) / count(*) AS share_of_groups,
    1 - (1 - sum(lost) / sum(judged)) ** expected_size AS share_if_independent
FROM by_group
WHERE judged = expected_size
GROUP BY run_id, rule_set, expected_size;
