-- One row per run and turn number: how long the context of its attempts was by then, and what it had
-- grown by since the turn before, by the policy and by tool results apart. Where a segment began anew
-- nothing grew out of what was there, and that turn counts in `segments_begun` alone.
CREATE OR REPLACE VIEW context_growth AS
WITH grown AS (
    SELECT
        run_id,
        turn_no,
        segment,
        prompt_tokens,
        completion_tokens,
        lag(prompt_tokens) OVER in_order AS prompt_before,
        lag(completion_tokens) OVER in_order AS completion_before,
        lag(segment) OVER in_order AS segment_before
    FROM turn_completed
    WINDOW in_order AS (PARTITION BY run_id, trajectory_id ORDER BY turn_no)
)
SELECT
    run_id,
    turn_no,
    count(*) AS trajectories,
    count(prompt_tokens) AS with_tokens,
    avg(prompt_tokens) AS prompt_tokens_mean,
    median(prompt_tokens) AS prompt_tokens_median,
    max(prompt_tokens) AS prompt_tokens_max,
    -- Of this turn, by the policy.
    avg(completion_tokens) AS policy_tokens_mean,
    -- Between the last turn's answer and this prompt: what tools said, and the template around it.
    avg(prompt_tokens::DOUBLE - prompt_before - completion_before)
        FILTER (segment = segment_before) AS tool_tokens_mean,
    sum(completion_tokens) AS policy_tokens,
    sum(prompt_tokens::DOUBLE - prompt_before - completion_before)
        FILTER (segment = segment_before) AS tool_tokens,
    count(*) FILTER (segment IS DISTINCT FROM segment_before) AS segments_begun
FROM grown GROUP BY run_id, turn_no;
