"""Console lines of verl: `step:10 - actor/entropy:9.48 - timing_s/gen:34.45 - ...`.

Invariant: the seconds of a step are computed from its parts, since whether `timing_s/step` has
testing and checkpoints in it depends on verl's version.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase
from producers.importers.source import BadImport, SourceFile, shown
from producers.importers.steps import end_to_end
from producers.importers.sums import sum_of_all

_LINE = re.compile(r"(?<![\w/])step:(\d+) - (.*)$")
_PAIR = re.compile(r"([^\s:][^:]*):\s*(?:np\.\w+\()?([-+\w.]+)\)?$")
_FLAGS = {"True": 1.0, "False": 0.0}
"""verl prints every Python number, and flags are such."""
_PARTS = (
    (Phase.WAITING, ("gen",)),
    (Phase.LOGPROBS, ("old_log_prob", "ref")),
    (Phase.FORWARD_BACKWARD, ("update_critic", "update_actor")),
    (Phase.PUBLISHING, ("update_weights",)),
)
"""Parts of timing_s/step that are phases; the optimizer is in update_actor."""
_NAMELESS = ("reward", "values", "adv")
"""Parts of timing_s/step that no phase is for: they stay unattributed."""
_EXTRA = ((Phase.EVALUATION, "testing"), (Phase.CHECKPOINT, "save_checkpoint"))
"""In timing_s/step or behind it, by version."""


@dataclass(frozen=True, slots=True)
class VerlStep:
    """One line."""

    number: int
    """global_step, from 1."""
    numbers: dict[str, float]
    """Every number of the line."""
    pointer: str
    """The line's number, from 1."""

    @property
    def wall_s(self) -> float | None:
        """Seconds of the step, testing and checkpoint included; null where they aren't told."""
        step_s = self._s("step")
        if step_s is None:
            return None
        return step_s if self.step_has_extra else step_s + self.extra_s

    @property
    def step_has_extra(self) -> bool:
        """Whether timing_s/step has testing and checkpoint in it: whether it comes nearer to the
        sum of all parts with them than without."""
        rest_s = (self._s("step") or 0.0) - self.parts_s
        return abs(rest_s - self.extra_s) < abs(rest_s)

    @property
    def parts_s(self) -> float:
        """Sum of the parts of a step, without testing and checkpoint."""
        names = [name for _, some in _PARTS for name in some]
        return sum(self._s(name) or 0.0 for name in (*names, *_NAMELESS))

    @property
    def extra_s(self) -> float:
        """Testing and checkpoint."""
        return sum(self._s(name) or 0.0 for _, name in _EXTRA)

    @property
    def phases(self) -> list[PhaseSpan]:
        """Laid end to end in the order in which verl runs them."""
        parts = [(phase, sum(self._s(name) or 0.0 for name in names)) for phase, names in _PARTS]
        return end_to_end([*parts, *((phase, self._s(name) or 0.0) for phase, name in _EXTRA)])

    @property
    def gpus(self) -> int | None:
        """GPUs, by throughput = tokens / (seconds x GPUs); null where that is no whole number."""
        seconds = self.numbers.get("perf/time_per_step")
        return _whole(self._tokens, seconds, self.numbers.get("perf/throughput"))

    @property
    def tokens(self) -> int | None:
        """Tokens of the step's batch; null where they aren't told as a whole number."""
        return _whole(self._tokens)

    @property
    def mean_tokens(self) -> float | None:
        """Tokens of a trajectory, in the mean: of its prompt and its response."""
        return sum_of_all(
            self.numbers.get(f"{part}_length/mean") for part in ("prompt", "response")
        )

    @property
    def trajectories(self) -> int | None:
        """Samples, by tokens = samples x (mean prompt + mean response); null where that gives no
        whole number."""
        return _whole(self._tokens, self.mean_tokens)

    @property
    def _tokens(self) -> float | None:
        return self.numbers.get("perf/total_num_tokens")

    def _s(self, name: str) -> float | None:
        return self.numbers.get(f"timing_s/{name}")


def read_steps(source: SourceFile) -> list[VerlStep]:
    """The step lines of a console's output; other lines are passed over. Raises BadImport for a
    line with a part that is no `key:value`."""
    steps: list[VerlStep] = []
    for line_no, line in source.lines():
        if (match := _LINE.search(line)) is not None:
            place = f"{source.name} line {line_no}"
            numbers = _numbers(match[2].strip(), place)
            steps.append(VerlStep(int(match[1]), numbers, f"/{line_no}"))
    return steps


def _numbers(text: str, place: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(" - "):
        pair = _PAIR.fullmatch(part.strip())
        try:
            if pair is None:
                raise ValueError
            flag = _FLAGS.get(pair[2])
            found[pair[1]] = float(pair[2]) if flag is None else flag
        except ValueError:
            told = repr(shown(part))
            raise BadImport(f"{place} must be key:number - key:number, got {told}") from None
    return found


def _whole(total: float | None, *by: float | None) -> int | None:
    """`total` divided by all of `by`, if that is a whole number but for rounding."""
    if total is None or any(not each for each in by):
        return None
    ratio = total / math.prod(each or 1.0 for each in by)
    if not math.isfinite(ratio):
        return None
    nearest = round(ratio)
    return nearest if nearest > 0 and math.isclose(ratio, nearest, rel_tol=1e-6) else None
