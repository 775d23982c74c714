-- One row per run, rule set and span of constant declared resources: attempts that ended, attempts
-- that ended with a scored, trainable reward, and the rates of the latter by what they were bought
-- with. `rule_set` is null where nothing was judged: nothing is known to be trainable then.
CREATE OR REPLACE VIEW throughput AS
WITH started AS (
    SELECT run_id, trajectory_id, min(occurred_at) AS started_at
    FROM trajectory_started GROUP BY run_id, trajectory_id
),
finished AS (
    SELECT run_id, trajectory_id, max(occurred_at) AS finished_at
    FROM trajectory_finished GROUP BY run_id, trajectory_id
),
attempts AS (
    SELECT
        run_id,
        trajectory_id,
        finished_at,
        -- One whose start is unknown counts where it ended.
        coalesce(started_at, finished_at) AS started_at
    FROM finished
    LEFT JOIN started USING (run_id, trajectory_id)
    WHERE finished_at IS NOT NULL
),
-- The newest verdict of each rule set, and the newest reward.
judged AS (
    SELECT run_id, trajectory_id, rule_set, arg_max(trainable, log_offset) AS trainable
    FROM trajectory_judged GROUP BY run_id, trajectory_id, rule_set
),
scored AS (
    SELECT run_id, trajectory_id, arg_max_null(value, log_offset) AS reward
    FROM reward_assigned GROUP BY run_id, trajectory_id
),

-- An attempt in a span: the share of its active seconds that lie inside.
active AS (
    SELECT
        attempts.run_id,
        span,
        trajectory_id,
        finished_at >= spans.started_at
        AND (spans.ended_at IS NULL OR finished_at < spans.ended_at) AS ended_here,
        attempts.started_at < spans.started_at
        OR coalesce(finished_at >= spans.ended_at, false) AS straddles,
        CASE
            WHEN attempts.started_at < finished_at
                THEN date_diff(
                    'microsecond',
                    greatest(attempts.started_at, spans.started_at),
                    least(finished_at, coalesce(spans.ended_at, finished_at))
                ) / date_diff('microsecond', attempts.started_at, finished_at)
            ELSE 1
        END AS share
    FROM attempts
    JOIN resource_spans AS spans
        ON spans.run_id = attempts.run_id
        AND finished_at >= spans.started_at
        AND (spans.ended_at IS NULL OR attempts.started_at < spans.ended_at)
    -- Of no length, it is where it ended.
    WHERE attempts.started_at < finished_at
        OR spans.ended_at IS NULL OR finished_at < spans.ended_at
),
attempted AS (
    SELECT
        run_id,
        span,
        count(*) FILTER (ended_here) AS attempted,
        sum(share) AS attempted_equivalents
    FROM active GROUP BY run_id, span
),
completed AS (
    SELECT
        run_id,
        rule_set,
        span,
        count(*) FILTER (ended_here) AS completed,
        sum(share) AS completed_equivalents,
        count(*) FILTER (straddles) AS straddled
    FROM active
    JOIN judged USING (run_id, trajectory_id)
    JOIN scored USING (run_id, trajectory_id)
    WHERE trainable AND isfinite(reward) AND abs(reward) <= 1e100
    GROUP BY run_id, rule_set, span
),
rule_sets AS (
    SELECT DISTINCT run_id, rule_set FROM trajectory_judged
),

-- When attempts were in flight, those that go on included: a union of intervals.
flights AS (
    SELECT
        started.run_id,
        started_at,
        CASE
            WHEN ended.trajectory_id IS NULL THEN seen_until
            ELSE finished_at
        END AS finished_at
    FROM started
    LEFT JOIN finished USING (run_id, trajectory_id)
    LEFT JOIN (
        -- Nobody knows when one ended that was given up.
        SELECT DISTINCT run_id, trajectory_id FROM trajectory_judged
        UNION
        SELECT run_id, trajectory_id FROM trajectory_finished
    ) AS ended USING (run_id, trajectory_id)
    LEFT JOIN (
        SELECT run_id, max(observed_until) AS seen_until FROM resource_spans GROUP BY run_id
    ) USING (run_id)
),
-- One row per moment: two windows may see rows that start at one moment in two orders.
departed AS (
    SELECT run_id, started_at, max(finished_at) AS finished_at
    FROM flights
    WHERE started_at IS NOT NULL AND finished_at IS NOT NULL
    GROUP BY run_id, started_at
),
reached AS (
    SELECT
        run_id,
        started_at,
        finished_at,
        max(finished_at) OVER (
            PARTITION BY run_id ORDER BY started_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_until
    FROM departed
),
numbered AS (
    SELECT
        run_id,
        started_at,
        finished_at,
        count(*) FILTER (covered_until IS NULL OR started_at > covered_until) OVER (
            PARTITION BY run_id ORDER BY started_at ROWS UNBOUNDED PRECEDING
        ) AS island
    FROM reached
),
islands AS (
    SELECT run_id, min(started_at) AS started_at, max(finished_at) AS finished_at
    FROM numbered GROUP BY run_id, island
),
flown AS (
    SELECT
        spans.run_id,
        span,
        sum(
            date_diff(
                'microsecond',
                greatest(islands.started_at, spans.started_at),
                least(islands.finished_at, observed_until)
            )
        ) / 1e6 AS rollout_s
    FROM resource_spans AS spans
    JOIN islands
        ON islands.run_id = spans.run_id
        AND islands.started_at < observed_until AND islands.finished_at > spans.started_at
    GROUP BY spans.run_id, span
),
said AS (
    SELECT
        turns.run_id,
        span,
        sum(completion_tokens) AS generated_tokens,
        -- Not from row to row, where numbers at the edge of their type would break it.
        sum(prompt_tokens) FILTER (cached_tokens IS NOT NULL)
        - sum(cached_tokens) FILTER (prompt_tokens IS NOT NULL) AS prefilled_tokens
    FROM turn_completed AS turns
    JOIN resource_spans AS spans
        ON spans.run_id = turns.run_id
        AND turns.occurred_at >= spans.started_at
        AND (spans.ended_at IS NULL OR turns.occurred_at < spans.ended_at)
    GROUP BY turns.run_id, span
)
SELECT
    spans.run_id,
    kind,
    rule_set,
    spans.span,
    spans.started_at,
    spans.ended_at,
    observed_until,
    -- Ended at all, inside the span.
    coalesce(attempted, 0) AS attempted,
    -- Of these, with a scored, trainable reward.
    CASE WHEN rule_set IS NOT NULL THEN coalesce(completed, 0) END AS completed,
    -- An attempt counts the share of its active seconds that lies inside the span.
    coalesce(attempted_equivalents, 0) AS attempted_equivalents,
    CASE WHEN rule_set IS NOT NULL THEN coalesce(completed_equivalents, 0) END AS equivalents,
    -- How many of the completed were also active in another span.
    CASE WHEN rule_set IS NOT NULL THEN coalesce(straddled, 0) END AS straddled,
    generated_tokens,
    prefilled_tokens,
    wall_s,
    -- With attempts in flight.
    coalesce(rollout_s, 0) AS rollout_s,
    -- Null where what is divided by is undeclared or zero.
    attempted * 3600 / nullif(wall_s, 0) AS attempted_per_hour,
    completed * 3600 / nullif(wall_s, 0) AS completed_per_hour,
    completed * 3600 / nullif(rollout_s, 0) AS completed_per_rollout_hour,
    completed_equivalents * 3600 / nullif(wall_s, 0) AS equivalents_per_hour,
    completed_equivalents * 3600 / nullif(rollout_s, 0) AS equivalents_per_rollout_hour,
    completed_equivalents * 3600 / nullif(wall_s * engine_nodes, 0)
        AS equivalents_per_engine_node_hour,
    completed_equivalents * 3600 / nullif(wall_s * engine_gpus, 0)
        AS equivalents_per_engine_gpu_hour,
    -- Of all GPUs, idle ones too.
    completed_equivalents * 3600 / nullif(wall_s * gpus, 0) AS equivalents_per_gpu_hour,
    completed_equivalents * 3600 / nullif(wall_s * sandbox_slots, 0)
        AS equivalents_per_sandbox_slot_hour,
    generated_tokens / nullif(wall_s, 0) AS generated_tokens_per_s,
    prefilled_tokens / nullif(wall_s, 0) AS prefilled_tokens_per_s,
    -- What was declared.
    spans.* EXCLUDE (run_id, span, started_at, ended_at, observed_until, wall_s)
FROM resource_spans AS spans
LEFT JOIN rule_sets USING (run_id)
LEFT JOIN attempted USING (run_id, span)
LEFT JOIN completed USING (run_id, rule_set, span)
LEFT JOIN flown USING (run_id, span)
LEFT JOIN said USING (run_id, span)
LEFT JOIN (SELECT run_id, kind FROM runs) USING (run_id);
