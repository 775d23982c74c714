-- One row per producer that is open and that no later start of it has relieved: seconds since its
-- last pulse, as of $at.
SELECT
    run_id,
    printf('%s, incarnation %s', producer, incarnation) AS subject,
    epoch($at::TIMESTAMPTZ) - epoch(last_alive_at) AS value,
    NULL::BIGINT AS out_of
FROM producers
WHERE state = 'open'
    AND NOT EXISTS (
        FROM producers AS relief
        WHERE relief.run_id = producers.run_id
            AND relief.producer = producers.producer
            AND relief.first_alive_at > producers.last_alive_at
    );
