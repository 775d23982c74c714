-- One row per record that is no fact the book could take.
SELECT printf('%s/%d offset %d: %s: %s', topic, log_partition, log_offset, reason, detail)
FROM quarantine
ORDER BY topic, log_partition, log_offset
LIMIT 1000;
