-- One row per run and stop reason: how many of the attempts that ended did so for it.
CREATE OR REPLACE VIEW stop_reasons AS
WITH ended AS (
    SELECT
        run_id,
        trajectory_id,
        min(stop_reason) AS stop_reason,
        min(turns_completed) AS turns,
        min(policy_clock_s) AS policy_clock_s
    FROM trajectory_finished GROUP BY run_id, trajectory_id
),
counted AS (
    SELECT
        run_id,
        stop_reason,
        count(*) AS trajectories,
        avg(turns) AS turns_mean,
        avg(policy_clock_s) AS policy_clock_s_mean
    FROM ended GROUP BY run_id, stop_reason
)
SELECT
    run_id,
    stop_reason,
    trajectories,
    sum(trajectories) OVER (PARTITION BY run_id) AS ended,
    trajectories / sum(trajectories) OVER (PARTITION BY run_id) AS share,
    turns_mean,
    policy_clock_s_mean
FROM counted;
