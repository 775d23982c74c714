-- One row per decided group: its last decision, which counts. A group has two where it was decided
-- for a batch and then dropped from the queue; who votes is then what the first one said.
CREATE OR REPLACE VIEW group_decisions AS
WITH counted AS (
    SELECT
        group_id,
        count(*) AS decisions,
        min(log_offset) AS first_offset,
        max(log_offset) AS last_offset
    FROM group_decided GROUP BY group_id
)
SELECT
    newest.run_id,
    group_id,
    newest.rule_set,
    newest.decision,
    newest.drop_reason,
    first.decision AS first_decision,
    decisions,
    len(newest.members) AS members,
    len(list_filter(newest.members, lambda member: member.votes)) AS votes,
    newest.mean,
    newest.std,
    newest.algorithm,
    newest.cut.policy_version AS policy_version,
    first.cut.log_time AS decided_at,
    first.incarnation AS decided_by,
    first.log_partition,
    first_offset,
    last_offset,
    -- Where the first decision had read the group's partition up to. In a copied log offsets may be
    -- smaller than those that the cut names.
    least(first.cut.positions['events/' || first.log_partition], first_offset) AS read_to
FROM counted
JOIN group_decided AS first USING (group_id)
JOIN group_decided AS newest USING (group_id)
WHERE first.log_offset = first_offset AND newest.log_offset = last_offset;
