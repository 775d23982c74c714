-- One row per run: its scope as last declared.
CREATE OR REPLACE VIEW scopes AS
SELECT * FROM run_declared
QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY log_time DESC, log_offset DESC) = 1;
