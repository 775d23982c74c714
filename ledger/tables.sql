-- The book's tables of facts, rendered from ledger/facts by `make render`. A row comes
-- from the record at log_partition, log_offset of topic `events`, appended at
-- log_time.

-- A training, SFT or evaluation campaign began, with this scope and configuration.
CREATE TABLE run_declared (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    kind VARCHAR NOT NULL,  -- Train, eval or sft.
    name VARCHAR NOT NULL,  -- For people; not unique.
    parent_run_id UUID,  -- The run whose weights it starts from or evaluates.
    parent_policy_version BIGINT,  -- The policy version of the parent that it starts from or evaluates.
    pass_threshold DOUBLE NOT NULL,  -- A reward of at least this passes.
    configuration VARCHAR NOT NULL,  -- The whole configuration, JSON, without secrets.
    dataset VARCHAR,  -- Name of the dataset.
    split VARCHAR,  -- Split of the dataset.
    subset VARCHAR,  -- How the tasks were chosen from the split; null: all of them.
    subset_sha256 VARCHAR,  -- Digest of the sorted task ids.
    tasks BIGINT,  -- How many tasks the scope has.
    attempts_per_task BIGINT,  -- How many slots each task gets.
    temperature DOUBLE,  -- Sampling temperature.
    top_p DOUBLE,  -- Nucleus sampling; 1 is off.
    top_k BIGINT,  -- Top-k sampling; -1 is off.
    output_cap_tokens BIGINT,  -- Most tokens that one turn may generate.
    context_cap_tokens BIGINT,  -- Most tokens that a trajectory may grow to.
    turn_cap BIGINT,  -- Most turns of a trajectory.
    clock_cap_s DOUBLE,  -- Most seconds on the policy's clock.
    scaffold VARCHAR,  -- Agent program and version.
    model VARCHAR  -- Name of the policy's model.
);

-- A task is in the run's scope.
CREATE TABLE task_declared (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    task_id VARCHAR NOT NULL,  -- Name of the problem instance, unique in its dataset.
    stratum VARCHAR,  -- The part of the dataset that it belongs to.
    stratum_weight DOUBLE,  -- Weight of the stratum in weighted figures.
    task_checksum VARCHAR,  -- Digest of the statement, the tests and the image: another checksum, another task.
    repository VARCHAR,  -- Repository that the task is set in.
    base_commit VARCHAR,  -- Commit that the attempt starts from.
    statement STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- What the agent is asked to do.
);

-- A task's tests were tried on the gold patch and on the empty one.
CREATE TABLE task_validated (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    task_id VARCHAR NOT NULL,  -- The task.
    valid BOOLEAN NOT NULL,  -- Fit for use: gold passes, empty fails, the verdict repeats.
    gold_passes BOOLEAN,  -- Null: not tried, or the verifier gave no verdict.
    empty_fails BOOLEAN,  -- Null: not tried, or the verifier gave no verdict.
    repeats BIGINT NOT NULL,  -- How often each was tried.
    flaky BOOLEAN,  -- Whether repeats disagreed; null: tried once.
    gold_s DOUBLE,  -- Seconds that the tests took on the gold patch.
    empty_s DOUBLE,  -- Seconds that the tests took on the empty patch.
    template VARCHAR,  -- Sandbox template that it was tried in.
    task_checksum VARCHAR,  -- Digest of the task as tried.
    error_type VARCHAR,  -- Raw type of the error that kept it from a verdict.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- The error's text.
);

-- From now on the run uses these resources; null means undeclared, never zero.
CREATE TABLE resources_declared (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    engine_nodes BIGINT,  -- Nodes that serve inference.
    engines BIGINT,  -- Inference engines.
    engine_gpus_per_node BIGINT,  -- GPUs of each of these nodes; 0 on a machine without one.
    engine_gpu_type VARCHAR,  -- Their type.
    kv_tokens_per_engine BIGINT,  -- KV cache capacity of one engine, in tokens.
    engine_context_cap_tokens BIGINT,  -- Longest context that an engine takes.
    max_running_requests BIGINT,  -- Most requests that an engine runs at once.
    trainer_nodes BIGINT,  -- Nodes that train.
    trainer_gpus BIGINT,  -- GPUs that train, all nodes together.
    trainer_gpu_type VARCHAR,  -- Their type.
    colocated BOOLEAN,  -- Whether trainer and engines share GPUs.
    sandbox_backend VARCHAR,  -- Who runs the sandboxes.
    sandbox_slots BIGINT,  -- Most sandboxes at once.
    sandbox_vcpus DOUBLE,  -- vCPUs of each.
    trajectory_concurrency BIGINT,  -- Most trajectories in flight.
    limits MAP(VARCHAR, DOUBLE) NOT NULL  -- Any other limit by name: HTTP pool, proxy CPU, Docker networks, download cap.
);

-- A task was submitted for attempts that are scored together.
CREATE TABLE group_opened (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    task_id VARCHAR NOT NULL,  -- The task.
    expected_size BIGINT NOT NULL,  -- How many slots it has.
    target_step BIGINT,  -- The step that it is sampled for; null: none in particular.
    policy_version BIGINT  -- The newest published version when it was submitted.
);

-- An attempt left the queue.
CREATE TABLE trajectory_started (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    task_id VARCHAR NOT NULL,  -- The task.
    replaces UUID,  -- The trajectory in the same slot that this one refills.
    queue_s DOUBLE  -- Seconds that it had waited.
);

-- A sandbox is up.
CREATE TABLE sandbox_started (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    try_no BIGINT NOT NULL,  -- Which try of the trajectory, from 0.
    backend VARCHAR,  -- Who runs it.
    template VARCHAR,  -- Template or image.
    sandbox_id VARCHAR NOT NULL,  -- The backend's id.
    host VARCHAR,  -- Machine that it runs on, where known.
    vcpus DOUBLE,  -- vCPUs that it has.
    queue_s DOUBLE,  -- Seconds waited for a slot.
    start_s DOUBLE  -- Seconds from the request to its answer.
);

-- The agent and the task are installed in the sandbox.
CREATE TABLE sandbox_prepared (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    try_no BIGINT NOT NULL,  -- Which try of the trajectory, from 0.
    backend VARCHAR,  -- Who runs it.
    template VARCHAR,  -- Template or image.
    sandbox_id VARCHAR NOT NULL,  -- The backend's id.
    setup_s DOUBLE  -- Seconds that this took.
);

-- A sandbox didn't start, wasn't prepared, or was lost.
CREATE TABLE sandbox_failed (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    try_no BIGINT NOT NULL,  -- Which try of the trajectory, from 0.
    backend VARCHAR,  -- Who runs it.
    template VARCHAR,  -- Template or image.
    sandbox_id VARCHAR,  -- The backend's id; null when it never had one.
    stage VARCHAR NOT NULL,  -- Where the trajectory was.
    error_type VARCHAR NOT NULL,  -- Raw type of the error.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR),  -- The error's text.
    http_status BIGINT,  -- Status of the backend's answer, where it gave one.
    seconds DOUBLE,  -- Seconds spent on this try.
    backend_state VARCHAR,  -- State by the backend's own account afterwards.
    backend_end_at TIMESTAMPTZ,  -- When the backend says that it ended or will end, UTC.
    in_command BOOLEAN,  -- Whether a command ran when it was lost; false: idle.
    memory_used_bytes BIGINT,  -- Last metrics that the client kept.
    memory_limit_bytes BIGINT,  -- Last metrics that the client kept.
    disk_used_bytes BIGINT,  -- Last metrics that the client kept.
    disk_limit_bytes BIGINT  -- Last metrics that the client kept.
);

-- A sandbox was killed by its owner, or swept up.
CREATE TABLE sandbox_stopped (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    try_no BIGINT NOT NULL,  -- Which try of the trajectory, from 0.
    backend VARCHAR,  -- Who runs it.
    template VARCHAR,  -- Template or image.
    sandbox_id VARCHAR NOT NULL,  -- The backend's id.
    reason VARCHAR NOT NULL,  -- Why: finished, cancelled, swept.
    lifetime_s DOUBLE  -- Seconds that it was up.
);

-- The engine answered.
CREATE TABLE turn_completed (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    turn_no BIGINT NOT NULL,  -- From 0 in the trajectory.
    segment BIGINT NOT NULL,  -- From 0; the next one where a prompt doesn't extend the tokens before it.
    engine VARCHAR,  -- Address or name of the engine.
    model VARCHAR,  -- The model's name by the engine's account.
    request_id VARCHAR,  -- The engine's id of the request.
    prompt_tokens BIGINT,  -- Tokens of the prompt, cached ones included; null: unknown to an importer.
    cached_tokens BIGINT,  -- Of these, tokens that the engine's prefix cache held.
    completion_tokens BIGINT,  -- Tokens generated.
    client_s DOUBLE,  -- Seconds from request to answer, by the client.
    engine_s DOUBLE,  -- The same, by the engine.
    queue_s DOUBLE,  -- Of these, seconds in the engine's queue.
    first_token_s DOUBLE,  -- Seconds from request to the first token, by the engine.
    paused_s DOUBLE,  -- Seconds that the engine was paused in between.
    cost_usd DOUBLE,  -- Price of the request, where known.
    finish_reason VARCHAR,  -- Why generation ended, in the engine's words.
    retractions BIGINT,  -- How often the engine took the request off for lack of KV room.
    version_spans STRUCT("policy_version" BIGINT, "start" BIGINT, "end" BIGINT)[] NOT NULL,  -- Which policy versions sampled which completion tokens; empty: unknown.
    tokens_sha256 VARCHAR,  -- Digest of the turn's payload in topic `tokens`; null: none was sent.
    segment_reason VARCHAR  -- Why a new segment begins here; null: it doesn't.
);

-- A request to the engine failed.
CREATE TABLE turn_failed (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    turn_no BIGINT NOT NULL,  -- From 0 in the trajectory.
    segment BIGINT NOT NULL,  -- From 0; the next one where a prompt doesn't extend the tokens before it.
    engine VARCHAR,  -- Address or name of the engine.
    model VARCHAR,  -- The model's name by the engine's account.
    request_id VARCHAR,  -- The engine's id of the request.
    stage VARCHAR NOT NULL,  -- How far it had come.
    error_type VARCHAR NOT NULL,  -- Raw type of the error.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR),  -- The error's text.
    http_status BIGINT,  -- Status of the answer, where there was one.
    seconds DOUBLE,  -- Seconds until it failed.
    tokens_so_far BIGINT  -- Tokens generated before it failed.
);

-- A command in the sandbox ended, whatever became of it.
CREATE TABLE tool_call_completed (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    turn_no BIGINT NOT NULL,  -- The turn that asked for it.
    tool_call_no BIGINT NOT NULL,  -- From 0 in the trajectory.
    sandbox_id VARCHAR,  -- Where it ran.
    name VARCHAR NOT NULL,  -- Name of the tool.
    arguments STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR),  -- What the policy passed to it.
    wall_s DOUBLE,  -- Seconds by the client.
    sandbox_s DOUBLE,  -- Seconds inside the sandbox; the difference is the tunnel.
    exit_code BIGINT,  -- Null: it has none.
    timed_out BOOLEAN,  -- Whether its time limit ended it.
    output STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR),  -- What it printed.
    error_type VARCHAR,  -- Raw type of the error when the call itself failed.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- The error's text.
);

-- The verifier spoke, or failed to.
CREATE TABLE reward_assigned (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    value DOUBLE,  -- The reward; null when the verifier gave none, and never 0 in its place.
    components MAP(VARCHAR, DOUBLE) NOT NULL,  -- Parts of the reward by name.
    verifier VARCHAR NOT NULL,  -- Who gave it.
    verifier_version VARCHAR,  -- A re-score by a newer version is another fact.
    task_checksum VARCHAR,  -- Digest of the task that it was scored against.
    image_digest VARCHAR,  -- Digest of the image that the tests ran in.
    tests_passed BIGINT,  -- Tests that passed.
    tests_failed BIGINT,  -- Tests that failed.
    verify_s DOUBLE,  -- Seconds that the verifier took.
    isolated BOOLEAN,  -- Whether the tests ran apart from the policy's sandbox.
    sandbox_id VARCHAR,  -- The sandbox that the tests ran in.
    error_type VARCHAR,  -- Raw type of the verifier's error.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- The error's text.
);

-- An attempt ended, and this is how much of it there is to read.
CREATE TABLE trajectory_finished (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    stop_reason VARCHAR NOT NULL,  -- Why it ended.
    stage VARCHAR,  -- Where it ended; null: unknown.
    turns_completed BIGINT,  -- turn_completed facts it has; null: unknown to an importer.
    turns_failed BIGINT,  -- turn_failed facts it has; null: unknown to an importer.
    tool_calls BIGINT,  -- tool_call_completed facts it has; null: unknown to an importer.
    reward_due BOOLEAN NOT NULL,  -- Whether a reward_assigned fact belongs to it.
    clock_cap_s DOUBLE,  -- Most seconds that it had on the policy's clock.
    policy_clock_s DOUBLE,  -- Seconds on the policy's clock: without slot, queue, pause and sandbox start.
    error_type VARCHAR,  -- Raw type of the exception that ended it.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR),  -- The exception's text.
    foreign_status VARCHAR,  -- What the system that an importer read called it, verbatim.
    foreign_calls BIGINT,  -- Requests to a model, by that system's account of the whole attempt; null: none given.
    foreign_prompt_tokens BIGINT,  -- Prompt tokens by that account, cached ones included; null: none given.
    foreign_cached_tokens BIGINT,  -- Of these, tokens that a prefix cache held.
    foreign_completion_tokens BIGINT,  -- Tokens generated, by that account; null: none given.
    foreign_cost_usd DOUBLE  -- Price of the attempt's requests, by that account; null: none given.
);

-- A numbered rule set said what an ended attempt was. Judging again appends.
CREATE TABLE trajectory_judged (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    rule_set BIGINT NOT NULL,  -- The rule set's number.
    outcome VARCHAR NOT NULL,  -- How it ended.
    cause_stage VARCHAR,  -- Where what ended it happened; null when nothing failed.
    cause_class VARCHAR,  -- The rule set's name for what ended it; null when nothing failed.
    blame VARCHAR,  -- Who caused it; null when nothing failed.
    trainable BOOLEAN NOT NULL,  -- Whether it may vote and be trained on.
    errors STRUCT("error_event_id" UUID, "stage" VARCHAR, "error_class" VARCHAR, "blame" VARCHAR)[] NOT NULL,  -- Every error inside it, also those that it outlived.
    evidence VARCHAR[] NOT NULL  -- What the judgement used beside the trajectory's own facts, such as losses of its peers.
);

-- A slot needs another attempt, since this one doesn't vote through no fault of the policy. Whoever runs the group starts one that replaces it. Audit only.
CREATE TABLE refill_requested (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    slot BIGINT NOT NULL,  -- Place in the group, from 0; a refill takes the slot of the attempt it replaces.
    trajectory_id UUID NOT NULL,  -- UUID of the attempt.
    task_id VARCHAR NOT NULL,  -- The task.
    refill_no BIGINT NOT NULL,  -- Which refill of the slot it is, from 1.
    reason VARCHAR NOT NULL,  -- Why this attempt doesn't vote.
    answer_by TIMESTAMPTZ NOT NULL  -- The group's deadline by the log's clock: after it the slot stays empty.
);

-- A group was closed: each member votes or is excluded with a reason.
CREATE TABLE group_decided (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    group_id UUID NOT NULL,  -- UUID of the group: the attempts at one task that are scored together.
    rule_set BIGINT NOT NULL,  -- The judgement's rule set.
    decision VARCHAR NOT NULL,  -- What becomes of it.
    drop_reason VARCHAR,  -- Why it was dropped; null otherwise.
    members STRUCT("slot" BIGINT, "trajectory_id" UUID, "reward_event_id" UUID, "reward" DOUBLE, "votes" BOOLEAN, "exclusion_reason" VARCHAR, "masked" BOOLEAN, "advantage" DOUBLE, "tokens_verified" BOOLEAN)[] NOT NULL,  -- One for each attempt, by slot and then by start.
    mean DOUBLE,  -- Mean reward of those that vote; null when none does.
    std DOUBLE,  -- Standard deviation of those that vote, ddof 1; null below two votes.
    algorithm VARCHAR NOT NULL,  -- How advantages were computed.
    cut STRUCT("positions" MAP(VARCHAR, BIGINT), "log_time" TIMESTAMPTZ, "policy_version" BIGINT, "configuration" VARCHAR, "configuration_sha256" VARCHAR) NOT NULL  -- What it depended on.
);

-- Groups were put in order for one training step.
CREATE TABLE batch_assembled (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    batch_id UUID NOT NULL,  -- UUID derived from the hash.
    batch_sha256 VARCHAR NOT NULL,  -- Digest of the ordered members, advantages and configuration.
    step BIGINT,  -- The step that it is meant for.
    group_ids UUID[] NOT NULL,  -- The groups, in order.
    trace_ids VARCHAR[] NOT NULL,  -- The traces, in order, when it is for SFT.
    lag_min BIGINT,  -- Smallest policy lag of a token, in versions.
    lag_max BIGINT,  -- Largest policy lag of a token, in versions.
    ready_at TIMESTAMPTZ,  -- When its last group was decided, UTC.
    held_s DOUBLE,  -- Seconds it then waited for room.
    cut STRUCT("positions" MAP(VARCHAR, BIGINT), "log_time" TIMESTAMPTZ, "policy_version" BIGINT, "configuration" VARCHAR, "configuration_sha256" VARCHAR) NOT NULL,  -- What it depended on.
    low_water MAP(VARCHAR, BIGINT) NOT NULL,  -- Where a restart has to read from, by `topic/partition`.
    model VARCHAR  -- Name of the policy's model, as the run declared it: a restart may read from behind that.
);

-- The trainer didn't train on a batch, which drops all its groups.
CREATE TABLE batch_refused (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    batch_id UUID NOT NULL,  -- The batch.
    step BIGINT,  -- The step that it was taken for.
    reason VARCHAR NOT NULL,  -- Which rule it broke: stale, nan, vocabulary.
    detail STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- Value, rule and place.
);

-- A trainer is ready for its first batch.
CREATE TABLE trainer_started (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    resumed_from VARCHAR,  -- Path of the checkpoint; null: a fresh start.
    resumed_step BIGINT,  -- The last step inside that checkpoint.
    policy_version BIGINT,  -- The version that it trains from.
    startup_s DOUBLE  -- Seconds from its start until it was ready.
);

-- A training step ended. Checkpoint and publication of a step are phases of the next one.
CREATE TABLE step_completed (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    step BIGINT NOT NULL,  -- From 1.
    batch_id UUID,  -- What it trained on.
    from_version BIGINT,  -- The policy version that it trained from.
    to_version BIGINT,  -- The policy version that it made.
    started_at TIMESTAMPTZ,  -- When it began: the end of the step before it, or the trainer's readiness; null: unknown to an importer.
    wall_s DOUBLE NOT NULL,  -- Seconds by the monotonic clock.
    phases STRUCT("phase" VARCHAR, "start_offset_s" DOUBLE, "seconds" DOUBLE)[] NOT NULL,  -- Stretches that exclude one another; what they leave of wall_s has no name.
    trajectories BIGINT,  -- Trajectories trained on.
    trained_tokens BIGINT,  -- Tokens with a gradient.
    computed_tokens BIGINT,  -- Tokens computed, padding included.
    loss DOUBLE,  -- The loss.
    grad_norm DOUBLE,  -- Norm of the gradient before it was clipped.
    metrics MAP(VARCHAR, DOUBLE) NOT NULL  -- Health figures by name.
);

-- Model, optimizer, random state and batch position are safe on disk. Audit only.
CREATE TABLE checkpoint_saved (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    step BIGINT NOT NULL,  -- The last step inside it.
    policy_version BIGINT,  -- The version of its weights.
    path VARCHAR NOT NULL,  -- Where it lies.
    batch_id UUID,  -- The last batch trained on.
    batch_positions MAP(VARCHAR, BIGINT) NOT NULL,  -- Where to read batches on, by `topic/partition`.
    size_bytes BIGINT,  -- Its size.
    save_s DOUBLE  -- Seconds that saving took.
);

-- The trainer made a policy version available.
CREATE TABLE weights_published (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    policy_version BIGINT NOT NULL,  -- 0 are the initial weights.
    method VARCHAR,  -- How they travel.
    step BIGINT,  -- The step that made it.
    path VARCHAR,  -- Where it lies, when it travels by disk.
    size_bytes BIGINT,  -- Its size.
    publish_s DOUBLE  -- Seconds that the export took.
);

-- An engine took a policy version, or failed to.
CREATE TABLE weights_applied (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    policy_version BIGINT NOT NULL,  -- 0 are the initial weights.
    method VARCHAR,  -- How they travel.
    engine VARCHAR NOT NULL,  -- The engine.
    success BOOLEAN NOT NULL,  -- Whether it now samples from this version.
    pause_mode VARCHAR,  -- What happened to running requests.
    cache_flushed BOOLEAN,  -- Whether the engine forgot its KV cache.
    paused_s DOUBLE,  -- Seconds that it didn't generate.
    apply_s DOUBLE,  -- Seconds from the request to its answer.
    aborted_requests BIGINT,  -- Requests in flight that were aborted.
    carried_requests BIGINT,  -- Requests in flight that went on with the new version.
    error_type VARCHAR,  -- Raw type of the error.
    error STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- The error's text.
);

-- A version was published after the checkpoint that training went on from.
CREATE TABLE weights_orphaned (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    policy_version BIGINT NOT NULL,  -- 0 are the initial weights.
    method VARCHAR,  -- How they travel.
    resumed_from VARCHAR,  -- That checkpoint.
    resumed_step BIGINT  -- The last step inside it.
);

-- The state of one engine. It may serve several runs: run_id is the cluster's own.
CREATE TABLE engine_sampled (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    engine VARCHAR NOT NULL,  -- The engine.
    policy_version BIGINT,  -- The version that it samples from.
    gpus BIGINT,  -- GPUs that it holds.
    kv_used_tokens BIGINT,  -- Tokens in its KV cache.
    kv_capacity_tokens BIGINT,  -- Tokens that fit.
    running BIGINT,  -- Requests that run.
    queued BIGINT,  -- Requests that wait.
    retracted BIGINT,  -- Requests taken off for lack of KV room, waiting to go on.
    paused BIGINT,  -- Requests held while it takes new weights.
    generation_tokens_per_s DOUBLE  -- Tokens generated per second.
);

-- The state of every pool, and where the trajectories in flight are.
CREATE TABLE pool_sampled (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    pools STRUCT("name" VARCHAR, "used" BIGINT, "limit" BIGINT, "waiting" BIGINT)[] NOT NULL,  -- One for each pool.
    in_queue BIGINT,  -- Trajectories that wait to start.
    in_sandbox_start BIGINT,  -- Trajectories that wait for a sandbox.
    in_setup BIGINT,  -- Trajectories being set up.
    in_model BIGINT,  -- Trajectories at the engine.
    in_tool BIGINT,  -- Trajectories in a command.
    in_verify BIGINT  -- Trajectories being scored.
);

-- A producer's pulse, appended once all before it was acknowledged. What a killed producer never sent, it recorded after its last pulse in the log, and within `interval_s` and the time that an append took.
CREATE TABLE producer_alive (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    accepted BIGINT NOT NULL,  -- Facts taken from callers so far, those still queued and those given up included.
    last_seq BIGINT NOT NULL,  -- The sequence number before this fact's own; -1: none.
    interval_s DOUBLE NOT NULL  -- The next pulse comes within this many seconds.
);

-- A producer ended in good order; nothing of it is missing up to here.
CREATE TABLE producer_closed (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    accepted BIGINT NOT NULL,  -- Facts taken from callers, those given up included.
    last_seq BIGINT NOT NULL  -- The sequence number before this fact's own; -1: none.
);

-- A producer had to give up facts.
CREATE TABLE producer_lost (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    count BIGINT NOT NULL,  -- How many since the last such fact for the same reason and kind.
    reason VARCHAR NOT NULL,  -- Why.
    first_fact VARCHAR,  -- Their kind; null: unknown, or several.
    detail STRUCT("size" BIGINT, "sha256" VARCHAR, "head" VARCHAR, "tail" VARCHAR)  -- Value, rule and place of the first of them.
);

-- Facts of an erased run were left out when a log was copied. One per stretch of numbers of an incarnation, so that they are no hole. Its run_id is an alias: what other runs' facts said of the erased run, they say of the alias.
CREATE TABLE facts_erased (
    log_partition INTEGER NOT NULL,
    log_offset BIGINT NOT NULL,
    log_time TIMESTAMPTZ NOT NULL,
    event_id UUID NOT NULL,  -- UUID, version 7 from a Recorder; version 5, derived from its source, from consumers and importers, so that a second run writes nothing new.
    run_id UUID NOT NULL,  -- UUID of the run; for facts of engines that serve several runs, of the cluster's own run.
    occurred_at TIMESTAMPTZ,  -- When it happened by the producer's clock, UTC; null when time_quality is none.
    producer VARCHAR NOT NULL,  -- Name of the program that recorded it.
    incarnation UUID NOT NULL,  -- UUID of this start of the producer.
    producer_seq BIGINT NOT NULL,  -- From 0, without a hole, per incarnation.
    time_quality VARCHAR NOT NULL,  -- How far occurred_at can be trusted.
    source_ref VARCHAR,  -- Where an importer read it; null for what was recorded as it happened.
    erased_incarnation UUID NOT NULL,  -- The incarnation that had recorded them.
    first_seq BIGINT NOT NULL,  -- The first number left out.
    last_seq BIGINT NOT NULL  -- The last number left out.
);
