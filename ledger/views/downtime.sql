-- One row per stretch in which a run had no trainer at work: from the end of the last step of one
-- life of the trainer to the start of the first step of the next. What a step that was under way had
-- done by then is in it. With these rows the steps' wall times add up to the whole run.
CREATE OR REPLACE VIEW downtime AS
WITH readied AS (
    SELECT
        run_id,
        incarnation,
        min(occurred_at) AS ready_at,
        min(startup_s) AS startup_s,
        min(resumed_from) AS resumed_from,
        min(resumed_step) AS resumed_step
    FROM trainer_started GROUP BY run_id, incarnation
),
stepped AS (
    SELECT
        run_id,
        trainer_incarnation AS incarnation,
        min(started_at) AS first_started_at,
        max(ended_at) AS last_ended_at,
        max(step) AS last_step
    FROM steps GROUP BY run_id, trainer_incarnation
),
lives AS (
    SELECT
        run_id,
        incarnation,
        coalesce(first_started_at, ready_at) AS began_at,
        coalesce(last_ended_at, first_started_at, ready_at) AS ended_at,
        last_step,
        startup_s,
        resumed_from,
        resumed_step
    FROM readied
    FULL JOIN stepped USING (run_id, incarnation)
),
gaps AS (
    SELECT
        *,
        max(ended_at) OVER earlier AS down_at,
        arg_max(incarnation, ended_at) OVER earlier AS after_incarnation,
        arg_max(last_step, ended_at) OVER earlier AS after_step
    FROM lives
    WINDOW earlier AS (
        PARTITION BY run_id ORDER BY began_at, incarnation
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
)
SELECT
    run_id,
    down_at AS started_at,
    began_at AS ended_at,
    date_diff('microsecond', down_at, began_at) / 1e6 AS seconds,
    -- Of these, how long the next life took to be ready.
    startup_s,
    after_incarnation,
    -- Null: that life ended none.
    after_step,
    incarnation AS next_incarnation,
    resumed_from,
    resumed_step
FROM gaps
WHERE down_at < began_at;
