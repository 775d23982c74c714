-- One row if records were delivered again; each counts once.
SELECT printf('%d records were delivered again and count once', count(*))
FROM duplicates
HAVING count(*) > 0;
