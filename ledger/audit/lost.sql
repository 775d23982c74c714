-- One row per time that a producer said it had to give up facts.
SELECT printf(
    'producer %s (incarnation %s) gave up %d facts: %s; the first a %s: %s',
    producer, incarnation, count, reason, coalesce(first_fact, '?'), coalesce(detail.head, '')
)
FROM producer_lost
ORDER BY log_partition, log_offset
LIMIT 1000;
