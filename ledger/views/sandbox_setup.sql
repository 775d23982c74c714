-- One row per run, backend, template, vCPUs and hour: how long it took to install agent and task in
-- a sandbox that was up.
CREATE OR REPLACE VIEW sandbox_setup AS
SELECT * EXCLUDE (stage) FROM sandbox_times WHERE stage = 'setup';
