"""One trial of Harbor: its phases, how it ended, its rewards.

Invariants:

1. Where a trial failed is told by its phases: the exception's type alone isn't enough (a docker
   build that fails is a RuntimeError).
2. Status and reward are apart: a trial that ran out of time keeps its reward.
3. Of several rewards none is chosen unless the user says which.
"""

from __future__ import annotations

from collections import Counter

from ledger.facts.lists import Stage, StopReason
from producers.importers.atif import claim_totals
from producers.importers.atif_file import AtifFile, add_steps
from producers.importers.harbor_files import CAPS, Trial
from producers.importers.rewards import chosen_reward
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import Json, SourceFile
from producers.importers.times import Clock


def add_trial(run: ForeignRun, trial: Trial, clock: Clock, reward_key: str | None) -> Attempt:
    """All facts of a trial."""
    row = trial.row
    attempt = run.group(trial.task_name).attempt([row.text("id") or trial.name])
    attempt.start(clock.read(row, "started_at"), row.ref)
    _sandbox(attempt, trial, clock)
    trajectory = trial.trajectory()
    if trajectory is not None:
        trial.models = trajectory.models
        add_steps(attempt, trajectory, clock, _latencies(run, trial, trajectory))
        claim_totals(run, attempt, trajectory)
    if row.has("step_results"):
        run.note(
            f"{row.place} has several steps: their rewards are in its own, and no more is read"
        )
    _reward(run, attempt, trial, clock, reward_key)
    if row.has("finished_at"):
        _finish(attempt, trial, trajectory, clock)
    else:
        run.note(f"{row.place} has no finished_at: the trial is still in flight")
    return attempt


def _sandbox(attempt: Attempt, trial: Trial, clock: Clock) -> None:
    """Docker's compose project is named after the trial: that is the sandbox's id."""
    common = {"try_no": 0, "backend": trial.backend}
    for name, phase, spent in (
        ("sandbox_started", "environment_setup", "start_s"),
        ("sandbox_prepared", "agent_setup", "setup_s"),
    ):
        row = trial.row.member(phase)
        if trial.row.has(phase) and trial.reached(phase):
            at = clock.read(row, "finished_at")
            fields = {**common, "sandbox_id": trial.name, spent: trial.phase_s(phase)}
            attempt.fact(name, at, row.ref, **fields)
    stage, exception = trial.failed_stage, trial.exception
    if stage is None or exception is None:
        return
    started = stage is Stage.SETUP
    phase = "agent_setup" if started else "environment_setup"
    attempt.fact(
        "sandbox_failed",
        clock.read(trial.row.member(phase), "finished_at"),
        exception.ref,
        sandbox_id=trial.name if started else None,
        stage=stage,
        error_type=trial.status,
        error=_error(exception),
        seconds=trial.phase_s(phase),
        **common,
    )


def _error(exception: Json) -> str | None:
    parts = (exception.text("exception_message"), exception.text("exception_traceback"))
    return "\n".join(part for part in parts if part) or None


def _latencies(run: ForeignRun, trial: Trial, trajectory: AtifFile) -> list[float]:
    """Seconds of each call, which terminus-2 keeps; only where there is one for each turn."""
    metadata = trial.row.member("agent_result").member("metadata")
    told = [each.as_number() for each in metadata.items("api_request_times_msec")]
    turns = len(trajectory.turns)
    if told and len(told) != turns:
        run.note(
            f"{metadata.place}: api_request_times_msec has {len(told)} times for {turns} turns,"
            " so no turn has one"
        )
        return []
    return [each / 1000 for each in told if each is not None]


def _reward(
    run: ForeignRun, attempt: Attempt, trial: Trial, clock: Clock, reward_key: str | None
) -> None:
    row, result = trial.row, trial.row.member("verifier_result")
    if not row.has("verifier_result") and not trial.exception_of_verifier:
        return
    rewards = {
        name: number
        for name, each in result.members("rewards").items()
        if (number := each.as_number()) is not None
    }
    broken = trial.exception if trial.exception_of_verifier else None
    tests = _tests(trial)
    attempt.reward(
        clock.read(row.member("verifier"), "finished_at"),
        result.ref if broken is None else broken.ref,
        value=chosen_reward(run, result.at("rewards").place, rewards, reward_key),
        components=rewards,
        verifier="harbor",
        task_checksum=row.text("task_checksum"),
        tests_passed=tests["passed"] if tests else None,
        tests_failed=tests["failed"] if tests else None,
        verify_s=trial.phase_s("verifier"),
        error_type=trial.exception_type if broken else None,
        error=_error(broken) if broken else None,
    )


def _tests(trial: Trial) -> Counter[str] | None:
    """How tests went, by verifier/ctrf.json; null where it isn't there."""
    path = trial.folder / "verifier" / "ctrf.json"
    if not path.exists():
        return None
    summary = SourceFile.read(path, trial.root).json().member("results").member("summary")
    return Counter({name: summary.integer(name) or 0 for name in ("passed", "failed")})


def _finish(attempt: Attempt, trial: Trial, trajectory: AtifFile | None, clock: Clock) -> None:
    row, told = trial.row, trial.row.member("agent_result")
    exception = None if trial.exception_of_verifier else trial.exception
    stop_reason = StopReason.SUBMITTED
    if exception is not None:
        stop_reason = CAPS.get(trial.status, StopReason.ERROR)
    errored = stop_reason is StopReason.ERROR
    attempt.finish(
        clock.read(row, "finished_at"),
        row.ref,
        stop_reason=stop_reason,
        stage=trial.failed_stage,
        turns_known=bool(trajectory and trajectory.turns),
        policy_clock_s=trial.phase_s("agent_execution"),
        error_type=trial.exception_type if errored else None,
        error=_error(exception) if exception else None,
        foreign_status=trial.status,
        foreign_prompt_tokens=told.integer("n_input_tokens"),
        foreign_cached_tokens=told.integer("n_cache_tokens"),
        foreign_completion_tokens=told.integer("n_output_tokens"),
        foreign_cost_usd=told.number("cost_usd"),
    )
