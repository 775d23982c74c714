"""Facts about a run, its tasks and the resources it was bought with."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.facts.base import ANY_NUMBER, Excerpt, Fact, Uuid
from ledger.facts.lists import RunKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeclared(Fact):
    """A training, SFT or evaluation campaign began, with this scope and configuration."""

    kind: RunKind
    """Train, eval or sft."""
    name: str
    """For people; not unique."""
    parent_run_id: Uuid | None = None
    """The run whose weights it starts from or evaluates."""
    parent_policy_version: int | None = None
    """The policy version of the parent that it starts from or evaluates."""
    pass_threshold: float = field(default=1.0, metadata=ANY_NUMBER)
    """A reward of at least this passes."""
    configuration: str = "{}"
    """The whole configuration, JSON, without secrets."""
    dataset: str | None = None
    """Name of the dataset."""
    split: str | None = None
    """Split of the dataset."""
    subset: str | None = None
    """How the tasks were chosen from the split; null: all of them."""
    subset_sha256: str | None = None
    """Digest of the sorted task ids."""
    tasks: int | None = None
    """How many tasks the scope has."""
    attempts_per_task: int | None = None
    """How many slots each task gets."""
    temperature: float | None = None
    """Sampling temperature."""
    top_p: float | None = None
    """Nucleus sampling; 1 is off."""
    top_k: int | None = field(default=None, metadata=ANY_NUMBER)
    """Top-k sampling; -1 is off."""
    output_cap_tokens: int | None = None
    """Most tokens that one turn may generate."""
    context_cap_tokens: int | None = None
    """Most tokens that a trajectory may grow to."""
    turn_cap: int | None = None
    """Most turns of a trajectory."""
    clock_cap_s: float | None = None
    """Most seconds on the policy's clock."""
    scaffold: str | None = None
    """Agent program and version."""
    model: str | None = None
    """Name of the policy's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeclared(Fact):
    """A task is in the run's scope."""

    task_id: str
    """Name of the problem instance, unique in its dataset."""
    stratum: str | None = None
    """The part of the dataset that it belongs to."""
    stratum_weight: float | None = None
    """Weight of the stratum in weighted figures."""
    task_checksum: str | None = None
    """Digest of the statement, the tests and the image: another checksum, another task."""
    repository: str | None = None
    """Repository that the task is set in."""
    base_commit: str | None = None
    """Commit that the attempt starts from."""
    statement: Excerpt | None = None
    """What the agent is asked to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskValidated(Fact):
    """A task's tests were tried on the gold patch and on the empty one."""

    task_id: str
    """The task."""
    valid: bool
    """Fit for use: gold passes, empty fails, the verdict repeats."""
    gold_passes: bool | None = None
    """Null: not tried, or the verifier gave no verdict."""
    empty_fails: bool | None = None
    """Null: not tried, or the verifier gave no verdict."""
    repeats: int = 1
    """How often each was tried."""
    flaky: bool | None = None
    """Whether repeats disagreed; null: tried once."""
    gold_s: float | None = None
    """Seconds that the tests took on the gold patch."""
    empty_s: float | None = None
    """Seconds that the tests took on the empty patch."""
    template: str | None = None
    """Sandbox template that it was tried in."""
    task_checksum: str | None = None
    """Digest of the task as tried."""
    error_type: str | None = None
    """Raw type of the error that kept it from a verdict."""
    error: Excerpt | None = None
    """The error's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesDeclared(Fact):
    """From now on the run uses these resources; null means undeclared, never zero."""

    engine_nodes: int | None = None
    """Nodes that serve inference."""
    engines: int | None = None
    """Inference engines."""
    engine_gpus_per_node: int | None = None
    """GPUs of each of these nodes; 0 on a machine without one."""
    engine_gpu_type: str | None = None
    """Their type."""
    kv_tokens_per_engine: int | None = None
    """KV cache capacity of one engine, in tokens."""
    engine_context_cap_tokens: int | None = None
    """Longest context that an engine takes."""
    max_running_requests: int | None = None
    """Most requests that an engine runs at once."""
    trainer_nodes: int | None = None
    """Nodes that train."""
    trainer_gpus: int | None = None
    """GPUs that train, all nodes together."""
    trainer_gpu_type: str | None = None
    """Their type."""
    colocated: bool | None = None
    """Whether trainer and engines share GPUs."""
    sandbox_backend: str | None = None
    """Who runs the sandboxes."""
    sandbox_slots: int | None = None
    """Most sandboxes at once."""
    sandbox_vcpus: float | None = None
    """vCPUs of each."""
    trajectory_concurrency: int | None = None
    """Most trajectories in flight."""
    limits: dict[str, float] = field(default_factory=dict[str, float])
    """Any other limit by name: HTTP pool, proxy CPU, Docker networks, download cap."""
