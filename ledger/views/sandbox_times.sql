-- One row per run, stage, backend, template, vCPUs and hour: how long the tries of `sandbox_uses`
-- took. `sandbox_start`, `sandbox_setup` and `verify_time` are one stage of it each.
CREATE OR REPLACE VIEW sandbox_times AS
SELECT
    run_id,
    stage,
    backend,
    template,
    -- Null where nobody knows.
    vcpus,
    hour,
    count(*) AS tries,
    count(*) FILTER (failed) AS failed,
    count(*) FILTER (failed) / count(*) AS failed_share,
    -- Those that went well and whose time is known: of these the percentiles, as the least time
    -- that at least so many of them took at the most.
    count(seconds) FILTER (NOT failed) AS timed,
    quantile_disc(seconds, 0.5) FILTER (NOT failed) AS p50_s,
    quantile_disc(seconds, 0.9) FILTER (NOT failed) AS p90_s,
    quantile_disc(seconds, 0.99) FILTER (NOT failed) AS p99_s,
    sum(seconds) FILTER (NOT failed) AS seconds,
    sum(seconds) FILTER (failed) AS failed_s
FROM sandbox_uses
GROUP BY run_id, stage, backend, template, vcpus, hour;
