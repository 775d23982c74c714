-- One row per run, backend, template and vCPUs of the attempt's sandbox, and hour: how long the
-- verifier took. Failed are those without a verdict; a re-score is a try of its own.
CREATE OR REPLACE VIEW verify_time AS
SELECT
    run_id,
    backend,
    template,
    -- Null where nobody knows.
    vcpus,
    hour,
    count(*) AS tries,
    count_if(failed) AS failed,
    count_if(failed) / count(*) AS failed_share,
    -- Those that went well and whose time is known: of these the percentiles, as the least time
    -- that at least so many of them took at the most.
    count(seconds) FILTER (NOT failed) AS timed,
    quantile_disc(seconds, 0.5) FILTER (NOT failed) AS p50_s,
    quantile_disc(seconds, 0.9) FILTER (NOT failed) AS p90_s,
    quantile_disc(seconds, 0.99) FILTER (NOT failed) AS p99_s,
    sum(seconds) FILTER (NOT failed) AS seconds,
    sum(seconds) FILTER (failed) AS failed_s
FROM sandbox_uses
WHERE stage = 'verify'
GROUP BY run_id, backend, template, vcpus, hour;
