-- One row per broken identity: what was expected, what was found, and where. Empty when the books
-- balance. `scope` says when an identity has to hold: `partition` after every prefix of a
-- partition; `log` where all partitions were read to one end, since it compares several of them.
CREATE OR REPLACE VIEW conservation AS
FROM broken_in_runs
UNION ALL FROM broken_across_runs;
