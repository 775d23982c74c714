-- One row per run, rule set, stage, class and blame: how often that failed, and in what share of
-- the tries at that stage, of the attempts and of the slots. A try that was made again and then
-- went well counts too. What the failures cost is in `failures`.
CREATE OR REPLACE VIEW failure_counts AS
WITH error_facts AS (
    SELECT run_id, event_id, true AS of_sandbox, seconds, NULL::BIGINT AS tokens
    FROM sandbox_failed
    UNION ALL
    SELECT run_id, event_id, false, seconds, tokens_so_far FROM turn_failed
    UNION ALL
    SELECT run_id, event_id, false, wall_s, NULL
    FROM tool_call_completed WHERE error_type IS NOT NULL
    UNION ALL
    SELECT run_id, event_id, false, verify_s, NULL
    FROM reward_assigned WHERE error_type IS NOT NULL
),
listed AS (
    SELECT run_id, rule_set, group_id, slot, trajectory_id, unnest(errors) AS error
    FROM judgements
),
failed AS (
    SELECT
        listed.run_id,
        rule_set,
        group_id,
        slot,
        trajectory_id,
        error.stage AS stage,
        error.error_class AS class,
        error.blame AS blame,
        false AS ends,
        coalesce(of_sandbox, false) AS of_sandbox,
        seconds,
        tokens
    FROM listed
    LEFT JOIN error_facts
        ON error_facts.run_id = listed.run_id AND event_id = error.error_event_id
    UNION ALL
    -- What ended an attempt may be no error, such as a cap.
    SELECT
        run_id, rule_set, group_id, slot, trajectory_id, cause_stage, cause_class, blame, true,
        NULL, NULL, NULL
    FROM judgements WHERE cause_class IS NOT NULL
),
by_attempt AS (
    SELECT
        run_id,
        rule_set,
        group_id,
        slot,
        trajectory_id,
        stage,
        class,
        blame,
        bool_or(ends) AS ends,
        -- A sandbox lost under a command is an error of both, and one failure.
        greatest(count(*) FILTER (of_sandbox), count(*) FILTER (NOT of_sandbox), 1) AS failures,
        greatest(
            count(seconds) FILTER (of_sandbox), count(seconds) FILTER (NOT of_sandbox)
        ) AS failures_timed,
        greatest(
            sum(seconds) FILTER (of_sandbox), sum(seconds) FILTER (NOT of_sandbox)
        ) AS seconds,
        sum(tokens) AS tokens
    FROM failed
    GROUP BY run_id, rule_set, group_id, slot, trajectory_id, stage, class, blame
),
counted AS (
    SELECT
        run_id,
        rule_set,
        stage,
        class,
        blame,
        sum(failures) AS failures,
        sum(failures_timed) AS failures_timed,
        count(*) AS trajectories,
        count(*) FILTER (ends) AS trajectories_ended,
        count(DISTINCT {'group_id': group_id, 'slot': slot}) AS slots,
        count(DISTINCT group_id) AS groups,
        sum(seconds) AS seconds,
        sum(tokens) AS tokens
    FROM by_attempt GROUP BY run_id, rule_set, stage, class, blame
),
tries AS (
    SELECT run_id, 'queue' AS stage, count(*) AS tries FROM trajectory_started GROUP BY run_id
    UNION ALL
    SELECT run_id, 'sandbox_start', count(*)
    FROM (
        SELECT run_id, trajectory_id, try_no FROM sandbox_started
        UNION
        SELECT run_id, trajectory_id, try_no FROM sandbox_failed WHERE stage = 'sandbox_start'
    ) GROUP BY run_id
    UNION ALL
    SELECT run_id, 'setup', count(*)
    FROM (
        SELECT run_id, trajectory_id, try_no FROM sandbox_prepared
        UNION
        SELECT run_id, trajectory_id, try_no FROM sandbox_failed WHERE stage = 'setup'
    ) GROUP BY run_id
    UNION ALL
    SELECT run_id, 'model', sum(tries)
    FROM (
        SELECT run_id, count(*) AS tries FROM turn_completed GROUP BY run_id
        UNION ALL
        SELECT run_id, count(*) FROM turn_failed GROUP BY run_id
    ) GROUP BY run_id
    UNION ALL
    SELECT run_id, 'tool', count(*) FROM tool_call_completed GROUP BY run_id
    UNION ALL
    SELECT run_id, 'verify', count(*) FROM reward_assigned GROUP BY run_id
),
judged AS (
    SELECT
        run_id,
        rule_set,
        count(*) AS judged,
        min(ended_at) AS first_ended_at,
        max(ended_at) AS last_ended_at
    FROM judgements GROUP BY run_id, rule_set
),
ended AS (
    SELECT run_id, count(DISTINCT trajectory_id) AS ended FROM trajectory_finished GROUP BY run_id
),
opened AS (
    SELECT run_id, count(*) AS groups, sum(expected_size) AS slots
    FROM opened_groups GROUP BY run_id
)
SELECT
    counted.run_id,
    counted.rule_set,
    -- Null where nothing says where.
    counted.stage,
    class,
    blame,
    failures,
    trajectories,
    -- Those that this ended; the others outlived it.
    trajectories_ended,
    counted.slots,
    counted.groups,
    -- Sandbox starts, set-ups, requests, commands, verdicts: all that there were at the stage.
    tries,
    judged AS trajectories_judged,
    opened.slots AS slots_opened,
    opened.groups AS groups_opened,
    failures / nullif(tries, 0) AS share_of_tries,
    trajectories / judged AS share_of_trajectories,
    counted.slots / nullif(opened.slots, 0) AS share_of_slots,
    counted.groups / nullif(opened.groups, 0) AS share_of_groups,
    -- Of the tries that failed; null where none was timed.
    seconds,
    failures - failures_timed AS failures_untimed,
    -- Generated by requests that then failed.
    tokens,
    first_ended_at,
    last_ended_at,
    -- Left out: attempts that ended and that this rule set hasn't judged.
    greatest(coalesce(ended, 0) - judged, 0) AS trajectories_unjudged
FROM counted
JOIN judged USING (run_id, rule_set)
LEFT JOIN tries ON tries.run_id = counted.run_id AND tries.stage = counted.stage
LEFT JOIN opened ON opened.run_id = counted.run_id
LEFT JOIN ended ON ended.run_id = counted.run_id;
