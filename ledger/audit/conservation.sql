-- One row per broken identity of the accounts; holes have a check of their own.
SELECT printf(
    '%s: %s (run %s%s%s%s): expected %s, found %s',
    identity,
    detail,
    coalesce(run_id::VARCHAR, '?'),
    coalesce(', step ' || step, ''),
    coalesce(', group ' || group_id::VARCHAR, ''),
    coalesce(', attempt ' || trajectory_id::VARCHAR, ''),
    expected,
    found
)
FROM conservation
WHERE identity <> 'no_hole'
ORDER BY ALL
LIMIT 1000;
