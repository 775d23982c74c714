"""What the assembler is told: how groups are decided and batches put together.

Canonical JSON of all settings and its digest go into every cut and every batch's hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, get_type_hints

from consumers.advantages import Algorithm


def sha256_of(text: str) -> str:
    """Hex digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


class Mode(StrEnum):
    """How rollouts and training take turns."""

    ASYNC = "async"  # a batch takes the groups that are ready, whatever step they were sampled for
    SYNC = "sync"  # a batch takes groups of its own step, when the step before it was trained


class OnFailure(StrEnum):
    """What becomes of a group that lost a member through no fault of the policy."""

    SURVIVORS = "survivors"  # the others vote
    DROP_GROUP = "drop_group"
    REFILL = "refill"  # another attempt in the slot


class Overlong(StrEnum):
    """What becomes of an attempt that ran into one of its caps."""

    SCORE = "score"
    MASK = "mask"  # it votes, and has no gradient of its own


class OverSampling(StrEnum):
    """What becomes of ready groups that a batch has no room for."""

    CARRY_OVER = "carry_over"
    FIRST_K = "first_k"  # dropped; biased towards short tasks, so what was left is published


class Orphaned(StrEnum):
    """What becomes of groups sampled from a version that training didn't go on from."""

    DROP = "drop"
    KEEP = "keep"


class BadSettings(ValueError):
    """A setting is unknown or wrong; the message says value, rule and place."""


@dataclass(frozen=True, kw_only=True)
class AssemblerSettings:
    """All settings. Raises BadSettings for values that can't be."""

    mode: Mode = Mode.ASYNC
    """async or sync."""
    groups_per_batch: int = 4
    """Groups that one step trains on."""
    group_size: int | None = None
    """Slots of every group; groups of another size are refused. Null: any size from 2."""
    min_valid: int | None = None
    """Fewest votes; a group with fewer is dropped. Null: half of the slots, rounded up."""
    algorithm: Algorithm = Algorithm.GRPO
    """How advantages are computed."""
    on_infra_failure: OnFailure = OnFailure.SURVIVORS
    """What becomes of a group that lost a member through no fault of the policy."""
    max_refills: int = 2
    """Most refills of one slot."""
    overlong: Overlong = Overlong.SCORE
    """What becomes of attempts that ran into a cap."""
    over_sampling: OverSampling = OverSampling.CARRY_OVER
    """What becomes of ready groups that a batch has no room for."""
    short_batches: bool = False
    """In sync mode: whether a step trains on fewer groups, when enough were opened for it, all are
    decided and too many dropped. Else it waits for further groups."""
    max_staleness: int | None = None
    """Most versions that a token may be behind the one trained from. Null: 2, in sync mode 0."""
    orphaned: Orphaned = Orphaned.DROP
    """What becomes of groups sampled from orphaned versions."""
    rules: int = 1
    """Number of the judgement's rule set."""
    group_deadline_s: float = 3600.0
    """A group is decided at the latest this long after its first fact, by the log's clock."""
    lease_s: float = 120.0
    """A producer that is silent for this long is dead; its attempts are abandoned."""
    evidence_wait_s: float = 5.0
    """How long a group waits behind an error of a member for what its peers say of the same."""
    max_untaken_batches: int = 2
    """Most batches that are assembled and not trained yet. In sync mode 1."""
    max_untaken_groups: int | None = None
    """Most groups that are decided for a batch and not trained yet; beyond, complete groups wait
    undecided. Null: twice as many as the batches that may wait have."""
    tokenizer: str | None = None
    """Name or digest of the tokenizer, for the batch's header."""
    vocabulary_size: int | None = None
    """Token ids are below this; payloads with others are never trained on. Null: not checked."""

    def __post_init__(self) -> None:
        for what, value, least in (
            ("groups_per_batch", self.groups_per_batch, 1),
            ("group_size", self.group_size, 2),
            ("min_valid", self.min_valid, 2),
            ("max_refills", self.max_refills, 0),
            ("max_staleness", self.max_staleness, 0),
            ("rules", self.rules, 1),
            ("max_untaken_batches", self.max_untaken_batches, 1),
            ("max_untaken_groups", self.max_untaken_groups, self.groups_per_batch),
            ("vocabulary_size", self.vocabulary_size, 1),
        ):
            if value is not None and value < least:
                raise BadSettings(f"{what} must be at least {least}, got {value}")
        for what, seconds in (
            ("group_deadline_s", self.group_deadline_s),
            ("lease_s", self.lease_s),
            ("evidence_wait_s", self.evidence_wait_s),
        ):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise BadSettings(f"{what} must be a number of seconds from 0, got {seconds}")
        size = self.group_size
        if size is not None and self.min_valid is not None and self.min_valid > size:
            raise BadSettings(
                f"min_valid must be at most group_size {size}, got {self.min_valid}: no group could"
                " ever be trained on"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any], place: str) -> AssemblerSettings:
        """Settings from a table or a command line. Raises BadSettings, which ends with `place`."""
        kinds = get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(given.keys() - set(names)):
            raise BadSettings(f"there is no setting {unknown[0]} ({', '.join(names)}; {place})")
        try:
            return cls(**{name: _typed(name, kinds[name], given[name]) for name in given})
        except BadSettings as error:
            raise BadSettings(f"{error} ({place})") from None

    def votes_due(self, size: int) -> int:
        """Fewest votes in a group of `size` slots; at least 2, since one vote has no std."""
        return max(2, -(-size // 2)) if self.min_valid is None else self.min_valid

    def deadline_us(self, first_us: int) -> int:
        """When a group has to be decided, whose first record has this log time. Microseconds since
        the epoch."""
        return first_us + int(self.group_deadline_s * 1e6)

    @property
    def staleness_bound(self) -> int:
        """Most versions that a token may be behind."""
        if self.max_staleness is not None:
            return self.max_staleness
        return 0 if self.mode is Mode.SYNC else 2

    @property
    def untaken_batches_bound(self) -> int:
        """Most batches that wait for the trainer or are being trained on."""
        return 1 if self.mode is Mode.SYNC else self.max_untaken_batches

    @property
    def untaken_groups_bound(self) -> int:
        """Most groups decided for a batch and not trained on yet."""
        if self.max_untaken_groups is not None:
            return self.max_untaken_groups
        return 2 * self.untaken_batches_bound * self.groups_per_batch

    @cached_property
    def canonical(self) -> str:
        """All settings as JSON, the same text for the same settings."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the canonical JSON."""
        return sha256_of(self.canonical)


def _typed(name: str, kind: Any, value: Any) -> Any:
    """A value of a setting's type; numbers and words may come as text."""
    options: tuple[Any, ...] = getattr(kind, "__args__", (kind,))
    wanted: Any = options[0]
    if value is None and len(options) > 1:
        return None
    choices = list(wanted) if issubclass(wanted, StrEnum) else []
    try:
        if choices:
            return wanted(value)
        return _number_or_flag(wanted, value)
    except (ValueError, KeyError, OverflowError):
        what = f"one of {', '.join(choices)}" if choices else wanted.__name__
        raise BadSettings(f"{name} must be {what}, got {value!r}") from None


def _number_or_flag(wanted: type, value: Any) -> Any:
    """Raises ValueError, KeyError, OverflowError for what is none."""
    if type(value) is wanted:
        return value
    if wanted is bool and isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    if wanted in (int, float) and isinstance(value, str | int | float) and value is not True:
        number = wanted(value)
        if wanted is float or float(value) == number:
            return number
    raise ValueError(value)
