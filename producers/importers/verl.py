"""verl: rollout samples as JSONL, and the console's step lines.

A folder of `{global_step}.jsonl` (trainer.rollout_data_dir or validation_data_dir), of console
output (.log, .txt, .out), or of both; or one such file. A sample of the v1 trainer has a uid,
`{prompt}_{session}_{output}`: a prompt is a group, and a session an attempt, with the score of its
last output, as verl's own metrics have it. The older trainer names none, so there the attempts at
one input in one step are taken for its group. A sample has no tokens, turns, times or status, and
nothing of these is made up: every attempt counts as submitted, with the score as its reward.

`--set kind=eval` says that the samples are of validation: each step's is then a run of its own.

Read from verl 0.9.1's source; the console lines also from public runs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.facts.lists import RunKind, StopReason
from producers.importers import Options, figures
from producers.importers.run import ForeignRun
from producers.importers.source import BadImport, Json, SourceFile, digest_of, listed
from producers.importers.steps import SUFFIXES, console_files
from producers.importers.times import UNKNOWN
from producers.importers.verl_lines import VerlStep, read_steps

FORM = "verl"
_OWN = ("input", "output", "gts", "score", "step", "request_id", "uid")
"""Members of a sample that are no part of its reward."""


@dataclass(frozen=True, slots=True)
class _Samples:
    """One {global_step}.jsonl."""

    step: int
    rows: Sequence[Json]
    source: SourceFile

    @property
    def sessions(self) -> list[_Session]:
        """In the order in which they begin; a row that names none is one of its own."""
        found: dict[tuple[str | int, ...], _Session] = {}
        for line_no, row in enumerate(self.rows, 1):
            prompt, session, output = _uid(row) or (None, None, 0)
            key = (line_no,) if prompt is None or session is None else (prompt, session)
            found.setdefault(key, _Session(key, prompt, [])).outputs.append((output, row))
        return list(found.values())


@dataclass(frozen=True, slots=True)
class _Session:
    """The rows of one attempt: several where the agent's context was begun anew."""

    key: tuple[str | int, ...]
    prompt: str | None
    """verl's id of its group; null: not told."""
    outputs: list[tuple[int, Json]]
    """(number, row)."""

    @property
    def first(self) -> Json:
        """Its input is the task's."""
        return min(self.outputs, key=lambda each: each[0])[1]

    @property
    def last(self) -> Json:
        """Its score is the attempt's."""
        return max(self.outputs, key=lambda each: each[0])[1]


def _uid(row: Json) -> tuple[str, int, int] | None:
    """The prompt, session and output of a row of the v1 trainer; null where it names none."""
    told = row.at("uid").value
    parts = told.rsplit("_", 2) if isinstance(told, str) else []
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return parts[0], int(parts[1]), int(parts[2])
    return None


def read(path: Path, options: Options) -> list[ForeignRun]:
    """One training run; with `kind=eval` an evaluation for each step. Raises BadImport."""
    kind = options.taken("kind").get("kind", "train")
    if kind not in ("train", "eval"):
        raise BadImport(f"--set kind must be train or eval, got {kind!r}")
    samples, consoles = _files(path)
    if kind == "eval":
        return [_evaluation(path, each) for each in samples]
    steps = [(step, source) for source in consoles for step in read_steps(source)]
    if not samples and not steps:
        raise BadImport(f"{path.name} must have lines such as `step:1 - key:1.0`, got none")
    first = samples[0].source if samples else steps[0][1]
    # By its first file or line, so that a run that has gone on is the same.
    key = [first.sha256] if samples else [repr(sorted(steps[0][0].numbers.items()))]
    run = ForeignRun(FORM, key, kind=RunKind.TRAIN, name=path.name, ref=first.ref())
    for each in samples:
        _add_samples(run, each, target_step=each.step)
    _add_steps(run, steps)
    _claim_scores(run, steps, samples)
    return [run]


def _files(path: Path) -> tuple[list[_Samples], list[SourceFile]]:
    """The samples by step, and the console's output. Raises BadImport where there is neither."""
    root = path if path.is_dir() else path.parent
    files = list(path.iterdir()) if path.is_dir() else [path]
    named = [each for each in files if each.suffix == ".jsonl" and each.stem.isdecimal()]
    given = [path] if path.suffix in SUFFIXES else []
    logs = console_files(path) if path.is_dir() else given
    if not named and not logs:
        raise BadImport(
            f"{path.name} must hold samples such as 10.jsonl or console output"
            f" ({', '.join(SUFFIXES)}), got neither"
        )
    samples: list[_Samples] = []
    for each in sorted(named, key=lambda file: int(file.stem)):
        source = SourceFile.read(each, root)
        samples.append(_Samples(int(each.stem), list(source.json_lines()), source))
    return samples, [SourceFile.read(each, root) for each in logs]


def _evaluation(path: Path, samples: _Samples) -> ForeignRun:
    run = ForeignRun(
        FORM,
        ["eval", samples.source.sha256],
        kind=RunKind.EVAL,
        name=f"{path.name} step {samples.step}",
        ref=samples.source.ref(),
    )
    _add_samples(run, samples, target_step=None)
    return run


def _add_samples(run: ForeignRun, samples: _Samples, target_step: int | None) -> None:
    for row in samples.rows:
        told = row.integer("step")
        if told is not None and told != samples.step:
            raise row.at("step").wrong(f"{samples.step}, as the file is named")
    sessions = samples.sessions
    tasks: dict[str, str] = {}
    for session in sessions:
        row = session.last
        prompt = session.first.need_text("input")
        task_id = f"input-{digest_of(prompt)[:16]}"
        named = []
        if session.prompt is not None:
            task_id = tasks.setdefault(session.prompt, task_id)
            named = [session.prompt]
        run.task(task_id, row.ref, statement=prompt)
        group = run.group(task_id, [samples.step, *named], target_step=target_step)
        attempt = group.attempt([samples.step, *session.key])
        attempt.start(UNKNOWN, row.ref)
        attempt.reward(
            UNKNOWN,
            row.ref,
            value=row.number("score"),
            components=_components(row),
            verifier=FORM,
        )
        attempt.finish(UNKNOWN, row.ref, stop_reason=StopReason.SUBMITTED, turns_known=False)
    _note_sizes(run, samples)
    _claim_samples(run, samples, sessions, target_step)


def _claim_samples(
    run: ForeignRun, samples: _Samples, sessions: Sequence[_Session], target_step: int | None
) -> None:
    scores = [session.last.number("score") for session in sessions]
    known = [each for each in scores if each is not None and math.isfinite(each)]
    place = samples.source.name
    if len(sessions) < len(samples.rows):
        run.note(
            f"{place}: {len(samples.rows)} outputs are of {len(sessions)} sessions: a session is an"
            " attempt, with the score of its last output"
        )
    scope = "true" if target_step is None else figures.sampled_for(samples.step)
    count = figures.of_attempts("count(*)", scope)
    run.claim(f"step {samples.step} samples", len(sessions), count, place)
    mean = math.fsum(known) / len(known) if known else None
    query = figures.of_attempts("avg(reward)", scope)
    run.claim(f"step {samples.step} mean score", mean, query, place)


def _components(row: Json) -> dict[str, float]:
    """Numbers beside the score, such as acc: parts of the reward by verl's account."""
    told = row.numbers(flags=True).items()
    return {name: value for name, value in told if name not in _OWN}


def _note_sizes(run: ForeignRun, samples: _Samples) -> None:
    """A group is guessed from its input, and the guess shows where sizes differ."""
    rows = [row for row in samples.rows if _uid(row) is None]
    sizes = Counter(row.need_text("input") for row in rows)
    if len(found := Counter(sizes.values())) > 1:
        told = ", ".join(f"{count} of {size}" for size, count in sorted(found.items()))
        run.note(
            f"{samples.source.name}: inputs come unequally often ({told}); a group is what shares"
            " an input, since verl names none"
        )


def _add_steps(run: ForeignRun, steps: Sequence[tuple[VerlStep, SourceFile]]) -> None:
    """Each line a step; of a step that was logged twice, as behind a restart, both."""
    seen: Counter[int] = Counter()
    for step, source in steps:
        if (wall_s := step.wall_s) is None:
            run.note(f"{source.name}#{step.pointer}: step {step.number} has no timing_s/step")
            continue
        again = seen[step.number]
        seen[step.number] += 1
        if again:
            run.note(f"{source.name}#{step.pointer}: step {step.number} was logged again")
        run.fact(
            "step_completed",
            UNKNOWN,
            source.ref(step.pointer),
            [again] if again else [],
            step=step.number,
            batch_id=None,
            wall_s=wall_s,
            phases=step.phases,
            trajectories=step.trajectories,
            computed_tokens=step.tokens,
            grad_norm=step.numbers.get("actor/grad_norm"),
            metrics=step.numbers,
        )
        if not again:
            _claim_step(run, step, f"{source.name}#{step.pointer}")
    _declare_gpus(run, steps)


def _declare_gpus(run: ForeignRun, steps: Sequence[tuple[VerlStep, SourceFile]]) -> None:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for step, _ in steps:
        if step.gpus is not None:
            found[step.gpus].append(step.number)
    if len(found) == 1:
        ((gpus, _),) = found.items()
        run.fact("resources_declared", UNKNOWN, steps[0][1].ref(), trainer_gpus=gpus)
    elif found:
        told = ", ".join(f"{gpus} at step {each}" for gpus, (each, *_) in sorted(found.items()))
        run.note(f"GPUs by throughput differ ({told}), so none are declared: are these two runs?")


def _claim_step(run: ForeignRun, step: VerlStep, place: str) -> None:
    """The identities that verl's figures satisfy, each from the parts that the ledger has."""
    numbers: Mapping[str, float] = step.numbers

    def claim(what: str, foreign: float | None, expression: str, **more: Any) -> None:
        query = figures.of_step(step.number, expression)
        run.claim(f"step {step.number} {what}", foreign, query, place, **more)

    seconds = "metrics['perf/time_per_step']"
    throughput = "metrics['perf/throughput']"
    gpus = f"round(computed_tokens / {seconds} / {throughput})"
    claim("GPUs, by throughput", None, f"{gpus}::BIGINT")
    claim(
        "throughput = tokens / seconds / GPUs",
        numbers.get("perf/throughput"),
        f"computed_tokens / {seconds} / {gpus}",
    )
    claim("trajectories", None, "trajectories")
    # The means are of 32-bit floats.
    mean = "computed_tokens / trajectories"
    claim("mean tokens of a trajectory", step.mean_tokens, mean, places=3)
    inside = "waiting_s + logprobs_s + forward_backward_s + publishing_s"
    if step.step_has_extra:
        inside += " + evaluation_s + checkpoint_s"
    nameless = "reward, advantage and what verl doesn't name are no phase"
    claim("timing_s/step, of its phases", numbers.get("timing_s/step"), inside, because=nameless)
    whole = "wall_s" if step.step_has_extra else "wall_s - evaluation_s - checkpoint_s"
    claim("timing_s/step", numbers.get("timing_s/step"), whole)


def _claim_scores(
    run: ForeignRun, steps: Sequence[tuple[VerlStep, SourceFile]], samples: Sequence[_Samples]
) -> None:
    """The console's mean score of a step against that step's samples, where both are here."""
    here = {each.step for each in samples}
    parted = {each.step for each in samples if len(each.sessions) < len(each.rows)}
    for step, source in {step.number: (step, source) for step, source in steps}.values():
        if step.number in here:
            query = figures.of_attempts("avg(reward)", figures.sampled_for(step.number))
            told = step.numbers.get("critic/score/mean")
            place = f"{source.name}#{step.pointer}"
            because = "verl's mean is over outputs, and a session has several"
            run.claim(f"step {step.number} critic/score/mean", told, query, place,
                      because=because if step.number in parted else None)  # fmt: skip
    if steps and samples and (lonely := here - {step.number for step, _ in steps}):
        told = listed([str(each) for each in sorted(lonely)])
        run.note(f"samples of steps {told} have no step line")
