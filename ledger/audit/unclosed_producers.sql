-- One row per incarnation that neither ended well nor still lives: what it recorded after its last
-- pulse may never have been sent.
WITH clock AS (
    -- The log's clock stands still once its last producer is dead.
    SELECT greatest(max(log_time), current_timestamp) AS now FROM facts
)
SELECT printf(
    'producer %s (incarnation %s) was never closed: what it recorded from %s to %s may be unseen',
    producer, incarnation, last_alive_at, unseen_until
)
FROM producers, clock
WHERE state = 'open' AND unseen_until < now
ORDER BY last_alive_at
LIMIT 1000;
