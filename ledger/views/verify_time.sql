-- One row per run, backend, template and vCPUs of the attempt's sandbox, and hour: how long the
-- verifier took. Failed are those without a verdict; a re-score is a try of its own.
CREATE OR REPLACE VIEW verify_time AS
SELECT * EXCLUDE (stage) FROM sandbox_times WHERE stage = 'verify';
