-- One row per kind of thing that keeps the book from being the whole story, with its count; every
-- report shows it. A duplicate that was dropped is no loss, but says that delivery was repeated.
CREATE OR REPLACE VIEW book_problems AS
SELECT 'quarantined: ' || reason AS problem, count(*) AS records
FROM quarantine GROUP BY reason
UNION ALL
SELECT 'lost: ' || reason, sum(count)
FROM producer_lost GROUP BY reason
UNION ALL
SELECT 'duplicates dropped', count(*) FROM duplicates HAVING count(*) > 0;
