"""slime: the console's metric lines, as training steps.

One step for each rollout whose `perf` line tells its time. No clock is printed, so no step has one,
and attempts are not in these lines at all. The steps keep the rollout's number as printed (from 0).

Where the seconds go: `train_wait_time` is all that lies between two trainings, so publishing
(`update_weights_time`) and engine switches (`sleep_time`, `wake_up_time`) are parts of it, and the
rest is waiting; `log_probs_time`, `ref_log_probs_time`, `actor_train_time` (with the optimizer) and
`data_preprocess_time` are parts of `train_time`. Phases are laid end to end in that order.

Read from slime's own lines of a public run; a line is the same in miles.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ledger.facts import PhaseSpan
from ledger.facts.lists import Phase, RunKind
from producers.importers import Options, figures
from producers.importers.run import ForeignRun
from producers.importers.slime_lines import ConsoleLines, Numbers, RolloutLines, read_lines
from producers.importers.source import BadImport, SourceFile
from producers.importers.steps import SUFFIXES, console_files, end_to_end
from producers.importers.sums import sum_of_all
from producers.importers.times import UNKNOWN

FORM = "slime"
_OUTSIDE = (
    (Phase.PUBLISHING, ("perf/update_weights_time",)),
    (Phase.ENGINE_SWITCH, ("perf/sleep_time", "perf/wake_up_time")),
)
"""Parts of perf/train_wait_time beside the waiting."""
_INSIDE = (
    (Phase.LOADING, ("perf/data_preprocess_time",)),
    (Phase.LOGPROBS, ("perf/log_probs_time", "perf/ref_log_probs_time")),
    (Phase.FORWARD_BACKWARD, ("perf/actor_train_time",)),
)
"""Parts of perf/train_time."""


def read(path: Path, options: Options) -> list[ForeignRun]:
    """One training run: the console output at `path`, or in a folder's .log, .txt and .out files.
    Raises BadImport."""
    options.taken()
    sources = _sources(path)
    lines = [read_lines(source) for source in sources]
    if not any(lines):
        raise BadImport(f"{path.name} must have lines such as `perf 1: {{...}}`, got none")
    # By their first lines, so that a console that has gone on is the same run.
    key = sorted(each.first for each in lines)
    run = ForeignRun(FORM, key, kind=RunKind.TRAIN, name=path.name, ref=sources[0].ref())
    for each, source in zip(lines, sources, strict=True):
        add_steps(run, each, source)
    return [run]


def _sources(path: Path) -> list[SourceFile]:
    """The console output at a path. Raises BadImport where there is none."""
    if path.is_file():
        return [SourceFile.read(path, path)]
    files = console_files(path)
    if not files:
        raise BadImport(
            f"{path.name} must hold console output ({', '.join(SUFFIXES)}), got none such file"
        )
    return [SourceFile.read(each, path) for each in files]


def add_steps(run: ForeignRun, lines: ConsoleLines, source: SourceFile) -> None:
    """A step for each rollout that tells its time, with the loss of the optimizer step of that
    number, and what the lines claim. What belongs to no step is noted."""
    for note in lines.notes:
        run.note(note)
    used: set[int] = set()
    for number, rollout in sorted(lines.rollouts.items()):
        step = lines.steps.get(number)
        if (wall_s := _wall_s(rollout.numbers)) is None:
            run.note(f"{source.name}: rollout {number} has no perf/step_time, so it makes no step")
            continue
        if step is not None:
            used.add(number)
        told = rollout.numbers | (step.numbers if step else {})
        run.fact(
            "step_completed",
            UNKNOWN,
            source.ref(rollout.pointer),
            step=number,
            batch_id=None,
            wall_s=wall_s,
            phases=phases_of(rollout.numbers),
            loss=told.get("train/loss"),
            grad_norm=told.get("train/grad_norm"),
            metrics=told,
        )
        _claim(run, rollout, source)
    for number in sorted(lines.steps.keys() - used):
        run.note(
            f"{source.name}: optimizer step {number} belongs to no rollout with a time, so its"
            f" {len(lines.steps[number].numbers)} numbers are in no fact"
        )


def phases_of(numbers: Mapping[str, float]) -> list[PhaseSpan]:
    """Where a step's seconds went. Waiting is what publishing and switches leave of the wait; where
    they are more than the wait, they are no part of it, and all of it was waiting."""
    outside = _spent(_OUTSIDE, numbers)
    wait_s = numbers.get("perf/train_wait_time", 0.0)
    rest_s = wait_s - sum(seconds for _, seconds in outside)
    waiting = (Phase.WAITING, rest_s if rest_s >= 0 else wait_s)
    return end_to_end([waiting, *outside, *_spent(_INSIDE, numbers)])


def _spent(
    parts: tuple[tuple[Phase, tuple[str, ...]], ...], numbers: Mapping[str, float]
) -> list[tuple[Phase, float]]:
    return [(phase, sum(numbers.get(name, 0.0) for name in names)) for phase, names in parts]


def _wall_s(numbers: Numbers) -> float | None:
    """Seconds of the step: as printed, or of its two halves. Null where neither is told."""
    if (told := numbers.get("perf/step_time")) is not None:
        return told
    return sum_of_all([numbers.get("perf/train_wait_time"), numbers.get("perf/train_time")])


def _claim(run: ForeignRun, rollout: RolloutLines, source: SourceFile) -> None:
    """The identities that slime's figures satisfy, each from the parts that the ledger has."""
    wait, train = "metrics['perf/train_wait_time']", "metrics['perf/train_time']"
    outside = "waiting_s + publishing_s + engine_switch_s"
    for what, name, expression in (
        ("step_time = train_wait_time + train_time", "step_time", f"{wait} + {train}"),
        ("wait_time_ratio", "wait_time_ratio", f"{wait} / wall_s"),
        ("update_weights_time", "update_weights_time", "publishing_s"),
        ("actor_train_time", "actor_train_time", "forward_backward_s"),
        ("train_wait_time", "train_wait_time", outside),
    ):
        told = rollout.numbers.get(f"perf/{name}")
        known = "perf/train_wait_time" in rollout.numbers and "perf/train_time" in rollout.numbers
        if known or wait not in expression:
            query = figures.of_step(rollout.number, expression)
            place = f"{source.name}#{rollout.pointer}"
            run.claim(f"rollout {rollout.number} {what}", told, query, place)
