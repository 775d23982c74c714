"""The closed lists: one enum each, used in facts, views and reports alike.

An unknown value is refused when a fact is encoded. A list grows only with a new schema version.
"""

from __future__ import annotations

from enum import StrEnum


class TimeQuality(StrEnum):
    """How far `occurred_at` can be trusted."""

    EXACT = "exact"  # read from a clock when it happened
    DERIVED = "derived"  # computed from other times or facts
    PHASE_ONLY = "phase_only"  # only the phase that it lies in is known
    NONE = "none"  # unknown: occurred_at is null


class RunKind(StrEnum):
    """What a run is for. Training and evaluation never mix in one run."""

    TRAIN = "train"
    EVAL = "eval"
    SFT = "sft"


class Stage(StrEnum):
    """Where in a trajectory something happened."""

    QUEUE = "queue"
    SANDBOX_START = "sandbox_start"
    SETUP = "setup"
    MODEL = "model"
    TOOL = "tool"
    VERIFY = "verify"


class EngineStage(StrEnum):
    """Where in the life of a request to the engine it failed."""

    CLIENT_POOL = "client_pool"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    UNKNOWN = "unknown"


class StopReason(StrEnum):
    """Why a trajectory ended."""

    SUBMITTED = "submitted"
    TURN_CAP = "turn_cap"
    OUTPUT_CAP = "output_cap"
    CONTEXT_CAP = "context_cap"
    CLOCK_CAP = "clock_cap"
    CANCELLED = "cancelled"
    ERROR = "error"


class Outcome(StrEnum):
    """How a trajectory ended, by judgement. The reward is apart."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class Blame(StrEnum):
    """Who caused a failure, by judgement."""

    POLICY = "policy"
    INFRASTRUCTURE = "infrastructure"
    VERIFIER = "verifier"
    TASK = "task"
    SCHEDULER = "scheduler"
    UNKNOWN = "unknown"


class ExclusionReason(StrEnum):
    """Why a member of a group doesn't vote."""

    INFRASTRUCTURE = "infrastructure"
    VERIFIER = "verifier"
    TASK = "task"
    SCHEDULER = "scheduler"
    UNKNOWN = "unknown"
    REWARD_MISSING = "reward_missing"
    TOKENS_MISSING = "tokens_missing"
    NO_ACTIVITY = "no_activity"
    SUPERSEDED = "superseded"
    LATE = "late"


class GroupDecision(StrEnum):
    """What becomes of a group."""

    BATCH = "batch"
    EVALUATED = "evaluated"
    DROPPED = "dropped"


class DropReason(StrEnum):
    """Why a whole group isn't trained on."""

    ZERO_VARIANCE = "zero_variance"
    TOO_FEW_VALID = "too_few_valid"
    GROUP_POLICY = "group_policy"
    STALE = "stale"
    ORPHANED_VERSION = "orphaned_version"
    OVER_SAMPLED = "over_sampled"
    REFUSED = "refused"


class Phase(StrEnum):
    """What the trainer's rank 0 spends a step on; phases exclude one another."""

    WAITING = "waiting"
    LOADING = "loading"
    LOGPROBS = "logprobs"
    FORWARD_BACKWARD = "forward_backward"
    OPTIMIZER = "optimizer"
    PUBLISHING = "publishing"
    ENGINE_SWITCH = "engine_switch"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


class WeightMethod(StrEnum):
    """How weights travel from the trainer to an engine."""

    DISK = "disk"
    DISTRIBUTED = "distributed"


class PauseMode(StrEnum):
    """What happens to an engine's running requests while it takes new weights."""

    NONE = "none"
    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"


class LossReason(StrEnum):
    """Why a producer gave up facts."""

    QUEUE_FULL = "queue_full"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    SPOOL_DAMAGED = "spool_damaged"
