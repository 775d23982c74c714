-- One row per opened group, by its first opening: one that was opened again counts once.
CREATE OR REPLACE VIEW opened_groups AS
SELECT
    run_id,
    group_id,
    task_id,
    expected_size,
    target_step,
    policy_version,
    occurred_at AS opened_at
FROM group_opened
QUALIFY row_number() OVER (PARTITION BY group_id ORDER BY log_offset) = 1;
