-- One row per fact of any kind: where it lies in the log, and its envelope.
-- Rendered from ledger/facts by `make render`.
CREATE OR REPLACE VIEW facts AS
SELECT 'run_declared' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM run_declared
UNION ALL
SELECT 'task_declared' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM task_declared
UNION ALL
SELECT 'task_validated' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM task_validated
UNION ALL
SELECT 'resources_declared' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM resources_declared
UNION ALL
SELECT 'group_opened' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM group_opened
UNION ALL
SELECT 'trajectory_started' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM trajectory_started
UNION ALL
SELECT 'sandbox_started' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM sandbox_started
UNION ALL
SELECT 'sandbox_prepared' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM sandbox_prepared
UNION ALL
SELECT 'sandbox_failed' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM sandbox_failed
UNION ALL
SELECT 'sandbox_stopped' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM sandbox_stopped
UNION ALL
SELECT 'turn_completed' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM turn_completed
UNION ALL
SELECT 'turn_failed' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM turn_failed
UNION ALL
SELECT 'tool_call_completed' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM tool_call_completed
UNION ALL
SELECT 'reward_assigned' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM reward_assigned
UNION ALL
SELECT 'trajectory_finished' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM trajectory_finished
UNION ALL
SELECT 'trajectory_judged' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM trajectory_judged
UNION ALL
SELECT 'refill_requested' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM refill_requested
UNION ALL
SELECT 'group_decided' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM group_decided
UNION ALL
SELECT 'batch_assembled' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM batch_assembled
UNION ALL
SELECT 'batch_refused' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM batch_refused
UNION ALL
SELECT 'trainer_started' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM trainer_started
UNION ALL
SELECT 'step_completed' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM step_completed
UNION ALL
SELECT 'checkpoint_saved' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM checkpoint_saved
UNION ALL
SELECT 'weights_published' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM weights_published
UNION ALL
SELECT 'weights_applied' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM weights_applied
UNION ALL
SELECT 'weights_orphaned' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM weights_orphaned
UNION ALL
SELECT 'engine_sampled' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM engine_sampled
UNION ALL
SELECT 'pool_sampled' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM pool_sampled
UNION ALL
SELECT 'producer_alive' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM producer_alive
UNION ALL
SELECT 'producer_closed' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM producer_closed
UNION ALL
SELECT 'producer_lost' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM producer_lost
UNION ALL
SELECT 'facts_erased' AS fact, log_partition, log_offset, log_time, event_id, run_id, occurred_at, producer, incarnation, producer_seq, time_quality, source_ref FROM facts_erased;
