"""What a simulated run is like. Everything is told here; nothing is measured.

Invariant: seconds are drawn from these distributions alone. An engine doesn't slow down under
load, and only the sandbox slots and the concurrency make anybody wait: so that a figure can be
worked out by hand from the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random

from ledger.facts.lists import RunKind


class BadPlan(ValueError):
    """A plan can't be simulated; the message says value, rule and place."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A positive quantity with a heavy right tail."""

    median: float
    """Half of all draws are below."""
    sigma: float
    """Standard deviation of its logarithm; 0: always the median."""
    most: float = math.inf
    """Draws above are cut to this."""

    def draw(self, chance: Random) -> float:
        """One value."""
        return min(self.median * math.exp(chance.gauss(0.0, self.sigma)), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """How attempts go."""

    active_s: LogNormal
    """Seconds in the model and in tools together: how long the trajectory is."""
    turn_s: float = 24.0
    """Seconds of one turn with its tool call, in the mean: so a long trajectory has many turns."""
    model_share: float = 0.6
    """Of these, the share in the model."""
    queue_s: LogNormal = LogNormal(0.05, 1.0)
    """Seconds of a request in the engine's queue, part of its seconds."""
    sandbox_start_s: LogNormal = LogNormal(1.9, 0.5)
    """Seconds from the request for a sandbox to its answer."""
    start_failure_s: LogNormal = LogNormal(15.0, 0.5)
    """Seconds until a start fails."""
    setup_s: LogNormal = LogNormal(3.0, 0.3)
    """Seconds to install the task."""
    verify_s: LogNormal = LogNormal(6.0, 0.4)
    """Seconds that the tests take."""
    start_fails: float = 0.02
    """Probability that one try to start a sandbox fails; the third failure ends the attempt."""
    lost: float = 0.01
    """Probability that an attempt loses its sandbox between two commands."""
    request_fails: float = 0.002
    """Probability that a request fails once and is then repeated."""
    prompt_tokens: LogNormal = LogNormal(2_500, 0.4)
    """Tokens of the first prompt."""
    completion_tokens: LogNormal = LogNormal(220, 0.8)
    """Tokens that the policy samples in a turn."""
    output_tokens: LogNormal = LogNormal(420, 1.1)
    """Tokens of a tool's answer, which the next prompt has."""
    runaway: float = 0.0
    """Share of attempts whose context grows without anybody stopping it."""
    runaway_tokens: tuple[int, int] = (113_000, 186_000)
    """Longest context of such an attempt: uniform between the two."""
    turn_cap: int = 250
    """Most turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What is in use; the fields of `resources_declared` that a simulated run has."""

    engine_nodes: int = 1
    """Nodes that serve inference, one engine each."""
    engine_gpus_per_node: int = 8
    """GPUs of each."""
    kv_tokens_per_engine: int = 1_500_000
    """KV cache of one engine, tokens."""
    engine_context_cap_tokens: int | None = None
    """Longest context an engine should take; null: undeclared."""
    trainer_gpus: int = 8
    """GPUs that train."""
    sandbox_slots: int = 64
    """Most sandboxes at once."""
    trajectory_concurrency: int = 64
    """Most trajectories in flight; those above the slots wait for a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a run on constant resources."""

    resources: Resources
    """Declared at its start."""
    seconds: float | None = None
    """How long groups keep coming; null: until all groups of the run have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A synchronous trainer: a step waits for its groups, trains, and publishes."""

    steps: int
    """How many steps."""
    groups_per_step: int
    """Groups that are sampled for one step."""
    logprobs_s: LogNormal = LogNormal(17.0, 0.03)
    """Seconds of the phase."""
    forward_backward_s: LogNormal = LogNormal(74.0, 0.03)
    """Seconds of the phase."""
    optimizer_s: LogNormal = LogNormal(4.3, 0.03)
    """Seconds of the phase."""
    publishing_s: LogNormal = LogNormal(33.85, 0.03)
    """Seconds in which a version goes to all engines; no attempt runs meanwhile."""
    unattributed_s: LogNormal = LogNormal(2.0, 0.2)
    """Seconds of a step that no phase names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run."""

    name: str
    """For people."""
    kind: RunKind
    """train or eval."""
    attempt: AttemptPlan
    """How its attempts go."""
    spans: tuple[Span, ...]
    """Resources in order; only the last may be open-ended."""
    tasks: int
    """Tasks of the scope, which groups take in turn. An evaluation has one group for each."""
    group_size: int
    """Attempts at a task that are scored together."""
    pass_rate: float
    """Probability that a scored attempt passes, in the mean over tasks."""
    training: Training | None = None
    """Null: nothing is trained. Groups come as fast as they can start, until the spans are over."""
    policy_version: int = 0
    """The version that is sampled from (at first, where a trainer publishes others)."""
    context_cap_tokens: int | None = None
    """The run's own cap; null: undeclared."""
    sample_every_s: float = 60.0
    """Seconds between two samples of engines and pools."""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """Goes into the run's configuration: what is special about it."""

    def __post_init__(self) -> None:
        for what, value in (
            ("tasks", self.tasks),
            ("group_size", self.group_size),
            ("sample_every_s", self.sample_every_s),
        ):
            if value <= 0:
                raise BadPlan(f"{what} must be more than 0, got {value} (plan {self.name})")
        if not 0 < self.pass_rate < 1:
            raise BadPlan(
                f"pass_rate must be between 0 and 1, got {self.pass_rate} (plan {self.name})"
            )
        endless = self.kind is RunKind.TRAIN and self.training is None
        due = self.spans if endless else self.spans[:-1]
        if not self.spans or any(span.seconds is None for span in due):
            raise BadPlan(
                "every span but the last needs its seconds, and so does the last of a run that"
                f" nothing else ends (plan {self.name})"
            )
        slots = [span.resources.sandbox_slots for span in self.spans]
        if slots != sorted(slots):
            raise BadPlan(f"sandbox_slots can only grow, got {slots} (plan {self.name})")

    def scaled(self, factor: float) -> RunPlan:
        """The same run with more or fewer attempts side by side: slots, concurrency, KV cache and
        groups per step. No seconds and no rate per slot change. An evaluation stays as it is: its
        tasks are its scope. Raises BadPlan."""
        if not 0 < factor < math.inf:
            raise BadPlan(f"a scale must be above 0 and finite, got {factor}")
        if self.kind is RunKind.EVAL or factor == 1:
            return self
        training = self.training and replace(
            self.training, groups_per_step=_times(self.training.groups_per_step, factor)
        )
        spans = tuple(
            replace(span, resources=_scaled(span.resources, factor)) for span in self.spans
        )
        return replace(self, spans=spans, training=training)


def _scaled(resources: Resources, factor: float) -> Resources:
    return replace(
        resources,
        kv_tokens_per_engine=_times(resources.kv_tokens_per_engine, factor),
        sandbox_slots=_times(resources.sandbox_slots, factor),
        trajectory_concurrency=_times(resources.trajectory_concurrency, factor),
    )


def _times(count: int, factor: float) -> int:
    return max(1, round(count * factor))
