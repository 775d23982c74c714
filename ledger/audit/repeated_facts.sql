-- One row per event id that the book has more than once.
SELECT printf('event_id %s is in the book %d times (%s)', event_id, count(*), string_agg(DISTINCT fact))
FROM facts
GROUP BY event_id
HAVING count(*) > 1
ORDER BY event_id
LIMIT 1000;
