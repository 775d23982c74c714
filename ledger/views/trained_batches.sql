-- One row per batch that was trained on: by which step, from which policy version, and whether that
-- still counts. A step behind the checkpoint that a later trainer went on from is undone.
CREATE OR REPLACE VIEW trained_batches AS
WITH resumed AS (
    SELECT run_id, coalesce(resumed_step, 0) AS resumed_step, log_offset FROM trainer_started
),
steps_done AS (
    SELECT
        done.run_id,
        batch_id,
        done.step,
        from_version,
        wall_s,
        done.started_at,
        done.log_offset,
        bool_or(resumed.run_id IS NOT NULL) AS undone
    FROM step_completed AS done
    LEFT JOIN resumed
        ON resumed.run_id = done.run_id
        AND resumed.log_offset > done.log_offset
        AND resumed.resumed_step < done.step
    WHERE batch_id IS NOT NULL
    GROUP BY ALL
),
newest AS (
    SELECT
        run_id,
        batch_id,
        -- The last that counts; where none does, the last.
        arg_max(
            {'step': step, 'from_version': from_version, 'started_at': started_at},
            {'stands': NOT undone, 'log_offset': log_offset}
        ) AS done,
        bool_and(undone) AS undone,
        count(*) FILTER (undone) AS steps_undone,
        coalesce(sum(wall_s) FILTER (undone), 0) AS undone_s
    FROM steps_done GROUP BY run_id, batch_id
)
SELECT
    run_id,
    batch_id,
    done.step AS step,
    done.from_version AS from_version,
    done.started_at AS started_at,
    undone,
    steps_undone,
    -- Seconds of the trainer, of steps done in vain.
    undone_s
FROM newest;
