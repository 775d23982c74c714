-- One row per run, backend, template, vCPUs and hour: how long sandboxes took to start. Tries that
-- failed are counted apart, and each try that was made again.
CREATE OR REPLACE VIEW sandbox_start AS
SELECT * EXCLUDE (stage) FROM sandbox_times WHERE stage = 'sandbox_start';
