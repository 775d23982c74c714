-- One row per broken identity of what runs say, where nothing but a run's own facts and those of
-- who names its groups, batches or attempts can tell; columns as in `conservation`.
CREATE OR REPLACE VIEW broken_in_runs AS
WITH attempts AS (
    SELECT run_id, group_id, slot, trajectory_id FROM trajectory_started
    UNION ALL
    SELECT run_id, group_id, slot, trajectory_id FROM trajectory_finished
    UNION ALL
    SELECT run_id, group_id, slot, trajectory_id FROM trajectory_judged
),
all_members AS (
    SELECT * FROM members
),
voters AS (
    SELECT * FROM all_members WHERE votes
),
listed AS (
    SELECT run_id, batch_id, step, unnest(group_ids) AS group_id FROM batch_assembled
),

-- Slots are the sum of expected sizes and the sum over dispositions.
balanced AS (
    SELECT
        run_id,
        step,
        group_id,
        CASE
            WHEN grouping(group_id) = 0 THEN 'group'
            WHEN grouping(step) = 0 THEN 'step'
            ELSE 'run'
        END AS grain,
        sum(expected_size) AS expected,
        sum(
            never_started + in_flight + pending + decided + trained + masked + evaluated
            + excluded + dropped + abandoned
        ) AS found
    FROM slot_balance
    GROUP BY GROUPING SETS ((run_id), (run_id, step), (run_id, group_id))
),
slots AS (
    SELECT
        'slots' AS identity, 'partition' AS scope, run_id, step, group_id,
        NULL::UUID AS trajectory_id,
        expected::VARCHAR AS expected,
        found::VARCHAR AS found,
        printf(
            'the expected sizes of this %s''s groups sum to %s, its slots'' dispositions to %s',
            grain, expected::VARCHAR, found::VARCHAR
        ) AS detail
    FROM balanced WHERE expected IS DISTINCT FROM found
),
opened_once AS (
    SELECT
        'opened_once', 'partition', min(run_id), NULL::BIGINT, group_id, NULL::UUID,
        arg_min(expected_size, log_offset)::VARCHAR,
        string_agg(DISTINCT expected_size::VARCHAR, ', ' ORDER BY expected_size::VARCHAR),
        'a group is opened with one size, this one was with '
        || string_agg(DISTINCT expected_size::VARCHAR, ', ' ORDER BY expected_size::VARCHAR)
    FROM group_opened GROUP BY group_id HAVING min(expected_size) <> max(expected_size)
),
group_known AS (
    SELECT
        'group_known', 'log', min(run_id), NULL::BIGINT, group_id,
        CASE WHEN count(DISTINCT trajectory_id) = 1 THEN any_value(trajectory_id) END,
        'group_opened',
        printf('%d attempts', count(DISTINCT trajectory_id)),
        printf(
            'nobody opened this group, which %d attempts are of', count(DISTINCT trajectory_id)
        )
    FROM (
        SELECT run_id, group_id, trajectory_id FROM attempts
        UNION ALL SELECT run_id, group_id, NULL FROM group_decisions
    )
    ANTI JOIN group_opened USING (group_id)
    GROUP BY group_id
),

-- An attempt is in one slot of one group.
slot_in_group AS (
    SELECT
        'slot_in_group', 'partition', min(attempts.run_id), NULL::BIGINT, group_id,
        trajectory_id,
        printf('slot 0 to %s', (expected_size::HUGEINT - 1)::VARCHAR),
        printf('slot %d', slot),
        printf('this attempt is in slot %d of a group of %d', slot, expected_size)
    FROM attempts
    JOIN opened_groups USING (group_id)
    WHERE slot NOT BETWEEN 0 AND expected_size - 1
    GROUP BY group_id, trajectory_id, slot, expected_size
),
-- Few are, if any: places are written out for these alone.
moved AS (
    SELECT trajectory_id FROM attempts GROUP BY trajectory_id
    HAVING min(slot) <> max(slot) OR min(group_id) <> max(group_id)
),
one_slot_per_trajectory AS (
    SELECT
        'one_slot_per_trajectory', 'partition', min(run_id), NULL::BIGINT,
        min(group_id), trajectory_id,
        'one slot',
        string_agg(DISTINCT place, ', ' ORDER BY place),
        'facts of this attempt are in ' || string_agg(DISTINCT place, ' and ' ORDER BY place)
    FROM (
        SELECT *, printf('slot %d of %s', slot, group_id::VARCHAR) AS place
        FROM attempts SEMI JOIN moved USING (trajectory_id)
    )
    GROUP BY trajectory_id
),
refill_in_slot AS (
    SELECT
        'refill_in_slot', 'partition', refill.run_id, NULL::BIGINT, refill.group_id,
        refill.trajectory_id,
        printf('an attempt in slot %d', refill.slot),
        coalesce(min(printf('slot %d of %s', old.slot, old.group_id::VARCHAR)), 'none'),
        printf(
            'this attempt in slot %d replaces %s, which is no attempt in that slot',
            refill.slot, refill.replaces::VARCHAR
        )
    FROM trajectory_started AS refill
    LEFT JOIN attempts AS old
        ON old.run_id = refill.run_id AND old.trajectory_id = refill.replaces
    WHERE refill.replaces IS NOT NULL
    GROUP BY ALL
    HAVING bool_or(old.slot = refill.slot AND old.group_id = refill.group_id) IS NOT TRUE
),

-- A group is decided once, and everybody in it is told of.
decided_once AS (
    SELECT
        'decided_once', 'partition', run_id, NULL::BIGINT, group_id, NULL::UUID,
        'one decision, or batch and then dropped',
        printf('%d decisions: %s and last %s', decisions, first_decision, decision),
        printf(
            'this group was decided %d times: first %s, last %s',
            decisions, first_decision, decision
        )
    FROM group_decisions
    WHERE decisions > 2
        OR (decisions = 2 AND NOT (first_decision = 'batch' AND decision = 'dropped'))
),
attempt_listed AS (
    SELECT
        'attempt_listed', 'partition', started.run_id, NULL::BIGINT, group_id,
        started.trajectory_id,
        'member', 'none',
        printf(
            'the decision had read the start of this attempt in slot %d and says nothing of it',
            started.slot
        )
    FROM trajectory_started AS started
    JOIN group_decisions USING (group_id)
    JOIN opened_groups USING (group_id)
    ANTI JOIN all_members AS members
        ON members.group_id = started.group_id AND members.trajectory_id = started.trajectory_id
    WHERE started.log_offset < read_to
        AND started.slot BETWEEN 0 AND expected_size - 1
),
one_vote_per_slot AS (
    SELECT
        'one_vote_per_slot', 'partition', min(run_id), NULL::BIGINT, group_id, NULL::UUID,
        '1',
        count(*)::VARCHAR,
        printf('%d attempts vote for slot %d', count(*), slot)
    FROM voters GROUP BY group_id, slot HAVING count(*) > 1
),
excluded_without_vote AS (
    SELECT
        'excluded_without_vote', 'partition', run_id, NULL::BIGINT, group_id, trajectory_id,
        CASE WHEN votes THEN 'no exclusion' ELSE 'exclusion, no advantage' END,
        printf(
            'votes: %s, exclusion: %s, masked: %s, advantage: %s', votes,
            coalesce(exclusion_reason, 'none'), masked, coalesce(advantage::VARCHAR, 'none')
        ),
        printf(
            'a member either votes or is excluded, with a reason and without an advantage: slot %d',
            slot
        )
    FROM all_members
    WHERE votes <> (exclusion_reason IS NULL)
        OR (NOT votes AND (masked OR advantage IS NOT NULL))
),

-- Who votes is valid.
voter_ended AS (
    SELECT
        'voter_ended', 'partition', voters.run_id, NULL::BIGINT, voters.group_id,
        voters.trajectory_id,
        'trajectory_finished', 'none',
        printf('this member votes for slot %d, where it never ended', voters.slot)
    FROM voters
    ANTI JOIN trajectory_finished AS finished
        ON finished.trajectory_id = voters.trajectory_id
        AND finished.group_id = voters.group_id
        AND finished.slot = voters.slot
),
voter_valid AS (
    SELECT
        'voter_valid', 'partition', run_id, NULL::BIGINT, group_id, trajectory_id,
        'trainable',
        CASE
            WHEN trainable IS NULL THEN 'not judged'
            WHEN trainable THEN 'blamed on ' || blame
            ELSE 'not trainable, blamed on ' || coalesce(blame, 'nobody')
        END,
        printf(
            'this member votes for slot %d, and rule set %d, by which the group was decided,'
            || ' did not find it valid',
            slot, rule_set
        )
    FROM voters
    WHERE trainable IS NOT TRUE OR blame = 'infrastructure'
),
voted_reward AS (
    SELECT
        'voted_reward', 'partition', voters.run_id, NULL::BIGINT, voters.group_id,
        voters.trajectory_id,
        coalesce(voters.reward::VARCHAR, 'a reward'),
        CASE
            WHEN rewarded.event_id IS NULL THEN 'no reward fact'
            ELSE coalesce(rewarded.value::VARCHAR, 'null')
        END,
        printf(
            'this member votes with reward %s for slot %d, and the verifier gave it none such',
            coalesce(voters.reward::VARCHAR, 'null'), voters.slot
        )
    FROM voters
    LEFT JOIN reward_assigned AS rewarded
        ON rewarded.run_id = voters.run_id
        AND rewarded.event_id = voters.reward_event_id
        AND rewarded.trajectory_id = voters.trajectory_id
    WHERE rewarded.value IS NULL
        OR rewarded.value IS DISTINCT FROM voters.reward
        OR NOT isfinite(voters.reward)
),
tokens_verified AS (
    SELECT
        'tokens_verified', 'partition', run_id, NULL::BIGINT, group_id, trajectory_id,
        'verified', 'not verified',
        printf('slot %d is for training, and its tokens were not verified', slot)
    FROM voters
    WHERE decision = 'batch' AND NOT masked AND NOT tokens_verified
),

-- A batch is of groups that were decided for it, and a step is on a batch.
batch_groups_decided AS (
    SELECT
        'batch_groups_decided', 'log', listed.run_id, listed.step, group_id, NULL::UUID,
        'batch',
        CASE
            WHEN decision IS NULL THEN 'no decision'
            ELSE decision || coalesce(': ' || drop_reason, '')
        END,
        printf(
            'this group is in batch %s, and its last decision is %s',
            listed.batch_id::VARCHAR, coalesce(decision, 'missing')
        )
    FROM listed
    LEFT JOIN group_decisions USING (group_id)
    WHERE decision IS DISTINCT FROM 'batch'
),
group_in_one_batch AS (
    SELECT
        'group_in_one_batch', 'partition', min(run_id), min(step), group_id, NULL::UUID,
        '1',
        count(*)::VARCHAR,
        printf(
            'this group is %d times in batches: %s',
            count(*), string_agg(batch_id::VARCHAR, ', ' ORDER BY step, batch_id)
        )
    FROM listed GROUP BY group_id HAVING count(*) > 1
),
trajectory_in_one_batch AS (
    SELECT
        'trajectory_in_one_batch', 'log', voters.run_id, min(step), min(group_id),
        trajectory_id,
        '1',
        count(DISTINCT group_id)::VARCHAR,
        printf('this attempt votes in %d batched groups', count(DISTINCT group_id))
    FROM voters JOIN listed USING (group_id)
    GROUP BY voters.run_id, trajectory_id HAVING min(group_id) <> max(group_id)
),
step_batch AS (
    SELECT
        'step_batch', 'partition', run_id, step, NULL::UUID, NULL::UUID,
        coalesce('batch ' || batch_id::VARCHAR, 'a batch'), 'none',
        printf(
            'step %d trained on %s',
            step, coalesce('batch ' || batch_id::VARCHAR || ', which nobody assembled', 'no batch')
        )
    FROM step_completed
    ANTI JOIN batch_assembled USING (run_id, batch_id)
    -- Of a run that an importer read, nobody may know the batches.
    WHERE batch_id IS NOT NULL OR run_id IN (SELECT run_id FROM batch_assembled)
),
refused_batch AS (
    SELECT
        'refused_batch', 'partition', run_id, step, NULL::UUID, NULL::UUID,
        'batch ' || batch_id::VARCHAR, 'none',
        printf('batch %s was refused, and nobody assembled it', batch_id::VARCHAR)
    FROM batch_refused ANTI JOIN batch_assembled USING (run_id, batch_id)
),
-- A trainer that resumes may refuse what was trained on in the life before; nothing else may.
refused_untrained AS (
    SELECT
        'refused_untrained', 'partition', refused.run_id, done.step, NULL::UUID, NULL::UUID,
        'refused', 'trained',
        printf('batch %s was refused and trained on', batch_id::VARCHAR)
    FROM batch_refused AS refused
    JOIN step_completed AS done USING (run_id, batch_id)
    WHERE done.log_offset > refused.log_offset OR done.incarnation = refused.incarnation
)
FROM slots
UNION ALL FROM opened_once
UNION ALL FROM group_known
UNION ALL FROM slot_in_group
UNION ALL FROM one_slot_per_trajectory
UNION ALL FROM refill_in_slot
UNION ALL FROM decided_once
UNION ALL FROM attempt_listed
UNION ALL FROM one_vote_per_slot
UNION ALL FROM excluded_without_vote
UNION ALL FROM voter_ended
UNION ALL FROM voter_valid
UNION ALL FROM voted_reward
UNION ALL FROM tokens_verified
UNION ALL FROM batch_groups_decided
UNION ALL FROM group_in_one_batch
UNION ALL FROM trajectory_in_one_batch
UNION ALL FROM step_batch
UNION ALL FROM refused_batch
UNION ALL FROM refused_untrained;
