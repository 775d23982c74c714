"""Facts about groups, attempts, and what the verifier and the judgement said of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.facts.base import ANY_NUMBER, Excerpt, GroupFact, TrajectoryFact, Uuid
from ledger.facts.lists import Blame, Outcome, Stage, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOpened(GroupFact):
    """A task was submitted for attempts that are scored together."""

    task_id: str
    """The task."""
    expected_size: int
    """How many slots it has."""
    target_step: int | None = None
    """The step that it is sampled for; null: none in particular."""
    policy_version: int | None = None
    """The newest published version when it was submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryStarted(TrajectoryFact):
    """An attempt left the queue."""

    task_id: str
    """The task."""
    replaces: Uuid | None = None
    """The trajectory in the same slot that this one refills."""
    queue_s: float | None = None
    """Seconds that it had waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFinished(TrajectoryFact):
    """An attempt ended, and this is how much of it there is to read."""

    stop_reason: StopReason
    """Why it ended."""
    stage: Stage | None = None
    """Where it ended; null: unknown."""
    turns_completed: int | None = None
    """turn_completed facts it has; null: unknown to an importer."""
    turns_failed: int | None = None
    """turn_failed facts it has; null: unknown to an importer."""
    tool_calls: int | None = None
    """tool_call_completed facts it has; null: unknown to an importer."""
    reward_due: bool
    """Whether a reward_assigned fact belongs to it."""
    clock_cap_s: float | None = None
    """Most seconds that it had on the policy's clock."""
    policy_clock_s: float | None = None
    """Seconds on the policy's clock: without slot, queue, pause and sandbox start."""
    error_type: str | None = None
    """Raw type of the exception that ended it."""
    error: Excerpt | None = None
    """The exception's text."""
    foreign_status: str | None = None
    """What the system that an importer read called it, verbatim."""
    foreign_calls: int | None = None
    """Requests to a model, by that system's account of the whole attempt; null: none given."""
    foreign_prompt_tokens: int | None = None
    """Prompt tokens by that account, cached ones included; null: none given."""
    foreign_cached_tokens: int | None = None
    """Of these, tokens that a prefix cache held."""
    foreign_completion_tokens: int | None = None
    """Tokens generated, by that account; null: none given."""
    foreign_cost_usd: float | None = None
    """Price of the attempt's requests, by that account; null: none given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAssigned(TrajectoryFact):
    """The verifier spoke, or failed to."""

    value: float | None = field(metadata=ANY_NUMBER)
    """The reward; null when the verifier gave none, and never 0 in its place."""
    components: dict[str, float] = field(default_factory=dict[str, float], metadata=ANY_NUMBER)
    """Parts of the reward by name."""
    verifier: str
    """Who gave it."""
    verifier_version: str | None = None
    """A re-score by a newer version is another fact."""
    task_checksum: str | None = None
    """Digest of the task that it was scored against."""
    image_digest: str | None = None
    """Digest of the image that the tests ran in."""
    tests_passed: int | None = None
    """Tests that passed."""
    tests_failed: int | None = None
    """Tests that failed."""
    verify_s: float | None = None
    """Seconds that the verifier took."""
    isolated: bool | None = None
    """Whether the tests ran apart from the policy's sandbox."""
    sandbox_id: str | None = None
    """The sandbox that the tests ran in."""
    error_type: str | None = None
    """Raw type of the verifier's error."""
    error: Excerpt | None = None
    """The error's text."""


@dataclass(frozen=True, slots=True)
class ErrorJudgement:
    """Judgement of one error inside a trajectory."""

    error_event_id: Uuid
    """The fact that holds the error."""
    stage: Stage
    """Where it happened."""
    error_class: str
    """The rule set's name for its kind."""
    blame: Blame
    """Who caused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryJudged(TrajectoryFact):
    """A numbered rule set said what an ended attempt was. Judging again appends."""

    rule_set: int
    """The rule set's number."""
    outcome: Outcome
    """How it ended."""
    cause_stage: Stage | None = None
    """Where what ended it happened; null when nothing failed."""
    cause_class: str | None = None
    """The rule set's name for what ended it; null when nothing failed."""
    blame: Blame | None = None
    """Who caused it; null when nothing failed."""
    trainable: bool
    """Whether it may vote and be trained on."""
    errors: list[ErrorJudgement] = field(default_factory=list[ErrorJudgement])
    """Every error inside it, also those that it outlived."""
    evidence: list[str] = field(default_factory=list[str])
    """What the judgement used beside the trajectory's own facts, such as losses of its peers."""
