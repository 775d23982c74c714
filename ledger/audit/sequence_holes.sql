-- One row per stretch of numbers of a producer's incarnation that the book doesn't have.
SELECT printf(
    'producer %s (incarnation %s) has no fact numbered %s to %s: %s missing',
    coalesce(producer, '?'),
    incarnation,
    missing_from::VARCHAR,
    missing_to::VARCHAR,
    (missing_to - missing_from + 1)::VARCHAR
)
FROM sequence_holes
ORDER BY incarnation, missing_from
LIMIT 1000;
