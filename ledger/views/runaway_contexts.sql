-- One row per turn with a context above the engine's declared cap; where none is declared, above four
-- times an even share of the KV cache, 4 x capacity / (running + queued), in the minute of its end.
-- Beside it stand the requests at that engine that queued or timed out while it ran.
CREATE OR REPLACE VIEW runaway_contexts AS
WITH runaways AS (
    SELECT
        turns.run_id,
        group_id,
        slot,
        trajectory_id,
        turn_no,
        turns.engine,
        occurred_at AS ended_at,
        occurred_at - to_microseconds((greatest(0, least(coalesce(client_s, 0), 86400)) * 1e6)::BIGINT)
            AS began_at,
        prompt_tokens::DOUBLE + completion_tokens AS context_tokens,
        engine_context_cap_tokens,
        coalesce(
            engine_context_cap_tokens,
            4::DOUBLE * state.kv_capacity_tokens / nullif(running + queued, 0)
        ) AS limit_tokens,
        coalesce(state.kv_capacity_tokens, kv_tokens_per_engine) AS kv_capacity_tokens,
        kv_used_tokens
    FROM turn_completed AS turns
    LEFT JOIN resource_spans AS spans
        ON spans.run_id = turns.run_id
        AND occurred_at >= spans.started_at
        AND (spans.ended_at IS NULL OR occurred_at < spans.ended_at)
    LEFT JOIN engine_minutes AS state
        ON state.run_id = turns.run_id
        AND state.engine = turns.engine
        AND state.minute = date_trunc('minute', occurred_at)
    WHERE prompt_tokens::DOUBLE + completion_tokens > coalesce(
        engine_context_cap_tokens,
        4::DOUBLE * state.kv_capacity_tokens / nullif(running + queued, 0)
    )
),
-- Minute by minute, to find who was at the engine meanwhile.
present AS (
    SELECT
        run_id,
        trajectory_id,
        turn_no,
        engine,
        began_at,
        ended_at,
        unnest(
            generate_series(
                date_trunc('minute', began_at), date_trunc('minute', ended_at), INTERVAL 1 MINUTE
            )
        ) AS minute
    FROM runaways
),
others AS (
    SELECT
        event_id,
        trajectory_id,
        engine,
        occurred_at AS until,
        occurred_at - to_microseconds((client_s * 1e6)::BIGINT) AS since,
        false AS failed
    FROM turn_completed
    WHERE queue_s > 0 AND client_s BETWEEN 0 AND 86400
    UNION ALL
    SELECT
        event_id,
        trajectory_id,
        engine,
        occurred_at,
        occurred_at - to_microseconds((seconds * 1e6)::BIGINT),
        true
    FROM turn_failed
    WHERE (stage = 'queue' OR error_type ILIKE '%timeout%') AND seconds BETWEEN 0 AND 86400
),
behind AS (
    SELECT
        present.run_id,
        present.trajectory_id,
        turn_no,
        count(DISTINCT event_id) FILTER (NOT failed) AS queued_behind,
        count(DISTINCT event_id) FILTER (failed) AS timed_out_behind
    FROM present
    JOIN others
        ON others.engine = present.engine
        AND others.trajectory_id <> present.trajectory_id
        AND others.since >= present.minute
        AND others.since < present.minute + INTERVAL 1 MINUTE
        AND others.since >= began_at
        AND others.since < ended_at
    GROUP BY present.run_id, present.trajectory_id, turn_no
)
SELECT
    run_id,
    group_id,
    slot,
    trajectory_id,
    turn_no,
    engine,
    began_at,
    ended_at,
    context_tokens,
    limit_tokens,
    CASE WHEN engine_context_cap_tokens IS NOT NULL THEN 'cap' ELSE 'share' END AS limited_by,
    kv_capacity_tokens,
    context_tokens / nullif(kv_capacity_tokens, 0) AS kv_capacity_share,
    -- Of the tokens in the cache, in the mean of that minute.
    context_tokens / nullif(kv_used_tokens, 0) AS kv_used_share,
    coalesce(queued_behind, 0) AS queued_behind,
    coalesce(timed_out_behind, 0) AS timed_out_behind
FROM runaways
LEFT JOIN behind USING (run_id, trajectory_id, turn_no);
