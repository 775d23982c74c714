"""Harbor: job folders (`result.json` of the job, one folder for each trial), or single trials.

A run is the trials of one agent, model and dataset of a job, as its own statistics are kept.
`--set reward_key=NAME` says which of several rewards of a trial is the reward; without it such a
trial has none, and all of them are its components.

Read from harbor 0.26.0's models and real folders of January and April 2026.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ledger.facts.lists import RunKind
from producers.importers import Options, configuration_of, figures
from producers.importers.atif_file import scaffold_of
from producers.importers.harbor_files import Trial
from producers.importers.harbor_trial import add_trial
from producers.importers.rewards import SETTING
from producers.importers.run import ForeignRun
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.sums import sum_of_known
from producers.importers.times import UNKNOWN, Clock

FORM = "harbor"
_ERRORED = figures.of_outcomes("count(*) FILTER (foreign_status <> 'completed')")


@dataclass(slots=True)
class _Job:
    """A job, as far as its files are here."""

    job_id: str
    name: str
    result: Json | None = None
    config: Json | None = None
    trials: list[Trial] = field(default_factory=list[Trial])


def read(path: Path, options: Options) -> list[ForeignRun]:
    """A run for each job, agent, model and dataset. Raises BadImport."""
    reward_key = options.taken(SETTING).get(SETTING)
    root = path if path.is_dir() else path.parent
    jobs, notes = _jobs(path, root)
    clock = Clock(options.timezone)
    runs: list[ForeignRun] = []
    for job in jobs:
        runs += _runs(job, clock, reward_key)
        if not job.trials:
            told = job.result.integer("n_total_trials") if job.result else None
            notes.append(f"{job.name} says that it has {told} trials, and none of them is here")
    if not runs:
        raise BadImport(
            f"{path.name} must have a trial's result.json in it or below, got none"
            + "".join(f" ({note})" for note in notes)
        )
    for note in [*notes, *clock.notes()]:
        runs[0].note(note)
    return runs


def _jobs(path: Path, root: Path) -> tuple[list[_Job], list[str]]:
    """All jobs below a path, and what else there is to tell."""
    jobs: dict[str, _Job] = {}
    notes: list[str] = []
    files = sorted(path.rglob("result.json")) if path.is_dir() else [path]
    rows = [(file, SourceFile.read(file, root).json()) for file in files]
    for file, row in rows:
        if not isinstance(row.value, dict):
            raise row.wrong("the result of a job or of a trial, an object")
        if "stats" in row.value or "n_total_trials" in row.value:
            job = _job(jobs, row.need_text("id"), file.parent.name)
            job.result, job.name = row, file.parent.name
            config = file.parent / "config.json"
            job.config = SourceFile.read(config, root).json() if config.exists() else None
    for file, row in rows:
        if "trial_name" in row.object():
            trial = Trial.of(row, file.parent, root)
            job = _job(
                jobs, trial.config.text("job_id") or row.need_text("id"), file.parent.parent.name
            )
            job.trials.append(trial)
        elif "stats" not in row.value and "n_total_trials" not in row.value:
            notes.append(f"{row.place} is neither of a job nor of a trial, and is left out")
    return list(jobs.values()), notes


def _job(jobs: dict[str, _Job], job_id: str, name: str) -> _Job:
    return jobs.setdefault(job_id, _Job(job_id, name))


def _runs(job: _Job, clock: Clock, reward_key: str | None) -> list[ForeignRun]:
    by_policy: dict[str, list[Trial]] = {}
    for trial in job.trials:
        by_policy.setdefault(trial.evals_key, []).append(trial)
    runs: list[ForeignRun] = []
    for key, trials in sorted(by_policy.items()):
        trials.sort(key=lambda each: (each.started_at, each.name))
        name = job.name if len(by_policy) == 1 else f"{job.name} {key}"
        run = ForeignRun(
            FORM, [job.job_id, key], kind=RunKind.EVAL, name=name, ref=trials[0].row.ref
        )
        for trial in trials:
            run.task(trial.task_name, trial.row.ref, task_checksum=trial.row.text("task_checksum"))
            add_trial(run, trial, clock, reward_key)
        _declare(run, job, trials, clock)
        _claim(run, trials)
        if job.result is not None:
            _claim_job(run, job, key, trials)
        runs.append(run)
    return runs


def _declare(run: ForeignRun, job: _Job, trials: list[Trial], clock: Clock) -> None:
    first = trials[0]
    config = job.config or first.row.member("config")
    agent = first.row.member("agent_info")
    told = {each.configured_model for each in trials if each.configured_model}
    seen = {name for each in trials for name in each.models}
    if seen - told and told:
        run.note(
            f"{run.name} is configured for {', '.join(sorted(told))}, and its turns name"
            f" {', '.join(sorted(seen))}: both are kept"
        )
    began = UNKNOWN if job.result is None else clock.read(job.result, "started_at")
    run.declare(
        began,
        dataset=first.row.text("source"),
        scaffold=scaffold_of(agent) or None,
        model=first.configured_model,
        configuration=configuration_of(config.value),
    )
    concurrency = config.integer("n_concurrent_trials")
    if concurrency is not None:
        run.fact(
            "resources_declared",
            UNKNOWN,
            config.ref,
            sandbox_backend=first.backend,
            trajectory_concurrency=concurrency,
        )


def _claim(run: ForeignRun, trials: list[Trial]) -> None:
    """What the trials' files add up to."""
    place = f"{len(trials)} trials of {run.name}"
    run.claim("trials", len(trials), figures.ATTEMPTS, place)
    statuses = Counter(each.status for each in trials)
    for status, count in statuses.items():
        run.claim(f"trials that ended as {status}", count, figures.with_status(status), place)
    rewards = [each.row.member("verifier_result").members("rewards") for each in trials]
    rewarded = sum(bool(each) for each in rewards)
    query = figures.of_facts("reward_assigned", "count(*)", "cardinality(components) > 0")
    run.claim("trials with rewards", rewarded, query, place)
    queries = {
        "environment_setup": figures.of_facts("sandbox_started", "sum(start_s)"),
        "agent_setup": figures.of_facts("sandbox_prepared", "sum(setup_s)"),
        "agent_execution": figures.of_outcomes("sum(policy_clock_s)"),
        "verifier": figures.of_facts("reward_assigned", "sum(verify_s)"),
    }
    for phase, query in queries.items():
        told = sum_of_known(each.phase_s(phase) for each in trials if each.reached(phase))
        run.claim(f"{phase} seconds", told, query, place)
    for name, column in (
        ("n_input_tokens", "prompt_tokens"),
        ("n_cache_tokens", "cached_tokens"),
        ("n_output_tokens", "completion_tokens"),
    ):
        told = sum_of_known(each.row.member("agent_result").integer(name) for each in trials)
        query = figures.of_attempts(f"sum({column})::BIGINT")
        run.claim(name, told, query, f"agent_result of {place}")


def _claim_job(run: ForeignRun, job: _Job, key: str, trials: list[Trial]) -> None:
    """The job's own statistics. Its `mean` counts a trial without a reward as 0."""
    assert job.result is not None
    stats = job.result.member("stats")
    whole = len(job.trials) == len(trials)
    if whole:
        run.claim("n_total_trials", job.result.integer("n_total_trials"), figures.ATTEMPTS,
                  job.result.place)  # fmt: skip
        for name, older, query in (
            ("n_completed_trials", "n_trials", figures.ATTEMPTS),
            ("n_errored_trials", "n_errors", _ERRORED),
        ):
            name = older if stats.has(older) and not stats.has(name) else name
            run.claim(name, stats.integer(name), query, stats.place)
    retries = stats.integer("n_retries")
    if retries:
        run.note(f"{retries} trials were tried again, and Harbor kept no trace of the first tries")
    told = stats.members("evals")
    if key not in told:
        if told:
            run.note(f"{stats.place} has evals of {', '.join(sorted(told))}, and none of {key}")
        return
    _claim_evals(run, told[key])


def _claim_evals(run: ForeignRun, row: Json) -> None:
    rewarded = figures.of_outcomes("count(reward)")
    run.claim("evals: n_trials", row.integer("n_trials"), rewarded, row.place)
    run.claim("evals: n_errors", row.integer("n_errors"), _ERRORED, row.place)
    for metric in row.items("metrics"):
        if metric.has("mean"):
            mean = figures.of_outcomes("coalesce(sum(reward), 0) / count(*)")
            run.claim("evals: mean", metric.number("mean"), mean, metric.place)
    for k, told in row.members("pass_at_k").items():
        if k.isdecimal():
            run.claim(f"evals: pass@{k}", told.as_number(), figures.pass_at_k(int(k)), told.place)
    for name, values in row.members("reward_stats").items():
        for value, names in values.entries().items():
            count = figures.of_facts(
                "reward_assigned",
                "count(*)",
                f"components[{figures.quoted(name)}] = '{_reward(names, value)}'::DOUBLE",
            )
            run.claim(f"evals: {name} {value}", len(names.array()), count, names.place)
    for name, names in row.members("exception_stats").items():
        run.claim(f"evals: {name}", len(names.array()), figures.with_status(name), names.place)


def _reward(row: Json, name: str) -> float:
    """The reward that a list of trials is named by."""
    try:
        return float(name)
    except ValueError:
        raise row.wrong("under a number, the reward") from None
