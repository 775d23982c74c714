"""Two spans beside one another: ratios, what they were bought with, and what else differs.

    compare_throughput(a, b).lines      part, name, A, B, ratio
    compare_step_time(a, b).lines

Invariants:

1. The word speedup appears only where hardware and settings are the same and the work agrees
   within 5%. Where hardware differs, the comparison says so in its place.
2. A setting that differs is a line; what is undeclared on one side differs.
3. A ratio stands for itself: none is multiplied with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import Any

Row = Mapping[str, Any]
"""A row of a view, by column."""

AGREES_WITHIN = 0.05
"""How far work may be apart to count as the same."""

HARDWARE = (
    "engine_nodes",
    "engine_gpus_per_node",
    "engine_gpu_type",
    "trainer_nodes",
    "trainer_gpus",
    "trainer_gpu_type",
)
"""Declared resources that are machines; the others are settings."""

RESOURCES = (
    *HARDWARE,
    "engine_gpus",
    "gpus",
    "engines",
    "kv_tokens_per_engine",
    "engine_context_cap_tokens",
    "max_running_requests",
    "colocated",
    "sandbox_backend",
    "sandbox_slots",
    "sandbox_vcpus",
    "trajectory_concurrency",
)
"""Columns of view `resource_spans`, in the order in which they are shown."""

_DERIVED = ("engine_gpus", "gpus")

RATES = (
    "completed_per_hour",
    "equivalents_per_hour",
    "attempted_per_hour",
    "completed_per_rollout_hour",
    "generated_tokens_per_s",
    "prefilled_tokens_per_s",
)
NORMALISED = (
    "equivalents_per_engine_node_hour",
    "equivalents_per_engine_gpu_hour",
    "equivalents_per_gpu_hour",
    "equivalents_per_sandbox_slot_hour",
)
PHASES = (
    "waiting_s",
    "loading_s",
    "logprobs_s",
    "forward_backward_s",
    "optimizer_s",
    "publishing_s",
    "engine_switch_s",
    "checkpoint_s",
    "evaluation_s",
    "unattributed_s",
    "rollout_s",
    "exposed_s",
)


class Part(StrEnum):
    """What a line is about."""

    RAW = "raw"
    NORMALISED = "normalised"
    PHASE = "phase"
    WORK = "work"
    RESOURCE = "resource"
    SETTING = "setting"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    name: str
    """As it was asked for."""
    resources: Row
    """Its declared resources, by column of `resource_spans`; an undeclared one is null."""
    settings: Row
    """Its other declared settings, by dotted name."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing of both sides."""

    part: Part
    name: str
    a: Any
    """A's value; null: unknown or undeclared."""
    b: Any
    """B's value; null: unknown or undeclared."""
    ratio: float | None = None
    """B / A, of step times A / B: above 1, B is the faster one. Null where it can't be taken."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Lines, the verdict last."""

    lines: tuple[Line, ...]

    def of(self, part: Part) -> list[Line]:
        """The lines of one part."""
        return [line for line in self.lines if line.part is part]


def compare_throughput(a: Side, of_a: Row, b: Side, of_b: Row) -> Comparison:
    """Two rows of view `throughput`."""
    raw = _known(_ratio(Part.RAW, name, of_a, of_b) for name in RATES)
    normalised = _known(_ratio(Part.NORMALISED, name, of_a, of_b) for name in NORMALISED)
    work = _lines(Part.WORK, _rollout_work(of_a), _rollout_work(of_b))
    headline = _ratio(Part.RAW, RATES[0], of_a, of_b)
    return _compared(a, b, [*raw, *normalised], work, headline)


def compare_step_time(a: Side, of_a: Sequence[Row], b: Side, of_b: Sequence[Row]) -> Comparison:
    """Two lists of rows of view `step_time`: means of a step. Raises ValueError for a side without
    a step."""
    for side, steps in ((a, of_a), (b, of_b)):
        if not steps:
            raise ValueError(f"a step time needs a step, and {side.name} has none")
    middle = [median(step["wall_s"] for step in steps) for steps in (of_a, of_b)]
    raw = [
        _shorter(Part.RAW, "wall_s per step", _mean(of_a, "wall_s"), _mean(of_b, "wall_s")),
        _shorter(Part.RAW, "median wall_s of a step", middle[0], middle[1]),
        Line(Part.RAW, "steps", len(of_a), len(of_b)),
    ]
    phases = _known(
        _shorter(Part.PHASE, f"{name} per step", _mean(of_a, name), _mean(of_b, name))
        for name in PHASES
    )
    work = _lines(Part.WORK, _step_work(of_a), _step_work(of_b))
    return _compared(a, b, [*raw, *phases], work, raw[0])


def _rollout_work(row: Row) -> dict[str, float | None]:
    attempts = row["attempted_equivalents"]
    return {
        "generated_tokens per attempt": _over(row["generated_tokens"], attempts),
        "prefilled_tokens per attempt": _over(row["prefilled_tokens"], attempts),
        "completed share of attempts": _over(row["completed"], row["attempted"]),
    }


def _step_work(steps: Sequence[Row]) -> dict[str, float | None]:
    members = [step["members"] for step in steps if step["members"] is not None]
    truncated = [step["members_truncated"] for step in steps if step["members"] is not None]
    return {
        "trajectories per step": _mean(steps, "trajectories"),
        "trained_tokens per step": _mean(steps, "trained_tokens"),
        "truncated share": _over(sum(truncated), sum(members)),
    }


def _compared(
    a: Side, b: Side, measured: Sequence[Line], work: Sequence[Line], headline: Line
) -> Comparison:
    resources = _known(_ratio(Part.RESOURCE, name, a.resources, b.resources) for name in RESOURCES)
    settings = list(_differing(a, b))
    verdict = _verdict(resources, settings, work, headline)
    return Comparison((*measured, *work, *resources, *settings, *verdict))


def _differing(a: Side, b: Side) -> Iterable[Line]:
    """Every setting that differs. Limits are settings by their own names."""
    for name in sorted(a.settings.keys() | b.settings.keys()):
        of_a, of_b = a.settings.get(name), b.settings.get(name)
        if of_a != of_b:
            yield Line(Part.SETTING, name, of_a, of_b, _number_ratio(of_a, of_b))


def _verdict(
    resources: Sequence[Line], settings: Sequence[Line], work: Sequence[Line], headline: Line
) -> list[Line]:
    said: list[Line] = []

    def say(name: str, lines: Iterable[Line] = ()) -> None:
        said.append(Line(Part.VERDICT, name, None, None, note=_named(lines)))

    machines = [line for line in resources if line.name in HARDWARE]
    changed = [line for line in resources if line.a != line.b and line.name not in _DERIVED]
    if moved := [line for line in changed if line in machines]:
        say("hardware differs", moved)
    elif not machines:
        say("hardware undeclared")
    else:
        say("same hardware")
    tuned = [line for line in changed if line not in machines] + list(settings)
    if tuned:
        say("settings differ", tuned)
    unknown = [line for line in work if line.a is None or line.b is None]
    apart = [line for line in work if line not in unknown and not agrees(line.a, line.b)]
    if apart:
        say("work differs by more than 5%", apart)
    if unknown:
        names = ", ".join(line.name for line in unknown)
        said.append(Line(Part.VERDICT, "work unknown", None, None, note=names))
    same = machines and not (moved or tuned or apart or unknown)
    if same and headline.ratio is not None:
        said.append(
            Line(Part.VERDICT, "speedup", headline.a, headline.b, headline.ratio, headline.name)
        )
    return said


def agrees(a: float, b: float) -> bool:
    """Whether two amounts of work are within 5% of one another."""
    return abs(a - b) <= AGREES_WITHIN * min(abs(a), abs(b))


def _named(lines: Iterable[Line]) -> str:
    return "; ".join(f"{line.name}: {_short(line.a)} and {_short(line.b)}" for line in lines)


def _short(value: Any) -> str:
    if value is None:
        return "undeclared"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _known(lines: Iterable[Line]) -> list[Line]:
    """Without those that neither side knows."""
    return [line for line in lines if line.a is not None or line.b is not None]


def _lines(part: Part, a: Row, b: Row) -> list[Line]:
    return [_ratio(part, name, a, b) for name in a]


def _ratio(part: Part, name: str, a: Row, b: Row) -> Line:
    return Line(part, name, a.get(name), b.get(name), _number_ratio(a.get(name), b.get(name)))


def _shorter(part: Part, name: str, a: float | None, b: float | None) -> Line:
    """Of seconds: how many times B is shorter."""
    return Line(part, name, a, b, _over(a, b), "A / B")


def _number_ratio(a: Any, b: Any) -> float | None:
    """B / A of two numbers."""
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (a, b)):
        return None
    return _over(b, a)


def _over(numerator: float | None, denominator: float | None) -> float | None:
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def _mean(steps: Sequence[Row], name: str) -> float | None:
    """The mean over steps that know it; null when none does."""
    known = [step[name] for step in steps if step[name] is not None]
    return fmean(known) if known else None
