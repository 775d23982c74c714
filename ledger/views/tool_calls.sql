-- One row per command in a sandbox.
CREATE OR REPLACE VIEW tool_calls AS
SELECT
    run_id,
    group_id,
    slot,
    trajectory_id,
    turn_no,
    tool_call_no,
    sandbox_id,
    name,
    arguments.head AS arguments,
    occurred_at AS ended_at,
    wall_s,
    sandbox_s,
    wall_s - sandbox_s AS tunnel_s,
    exit_code,
    timed_out,
    output.size AS output_size,
    output.head AS output_head,
    error_type
FROM tool_call_completed;
