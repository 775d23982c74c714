"""One trial of Harbor: its phases, how it ended, its rewards.

Invariants:

1. Where a trial failed is told by its phases: the exception's type alone isn't enough (a docker
   build that fails is a RuntimeError).
2. Status and reward are apart: a trial that ran out of time keeps its reward.
3. Of several rewards none is chosen unless the user says which.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ledger.facts.lists import Stage, StopReason
from producers.importers.atif_file import AtifFile, add_steps
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.times import Clock, seconds

PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")
_CAPS = {
    "AgentTimeoutError": StopReason.CLOCK_CAP,
    "ContextWindowExceededError": StopReason.CONTEXT_CAP,
    "ContextLengthExceededError": StopReason.CONTEXT_CAP,
    "OutputTokenExceededError": StopReason.OUTPUT_CAP,
    "OutputLengthExceededError": StopReason.OUTPUT_CAP,
    "CancelledError": StopReason.CANCELLED,
}
_OF_VERIFIER = frozenset(
    {
        "VerifierTimeoutError",
        "RewardFileNotFoundError",
        "RewardFileEmptyError",
        "VerifierOutputParseError",
        "AddTestsDirError",
        "DownloadVerifierDirError",
        "RegradeError",
    }
)
_OF_AGENT = frozenset({"NonZeroAgentExitCodeError", *_CAPS})


@dataclass(slots=True)
class Trial:
    """A trial's result.json and what lies beside it."""

    row: Json
    folder: Path
    root: Path
    trajectory: AtifFile | None = None

    @classmethod
    def of(cls, row: Json, folder: Path, root: Path) -> Trial:
        """Raises BadImport."""
        path = folder / "agent" / "trajectory.json"
        trajectory = AtifFile.read(path, root) if path.exists() else None
        trial = cls(row, folder, root, trajectory)
        row.need_text("task_name")
        return trial

    @property
    def name(self) -> str:
        return self.row.need_text("trial_name")

    @property
    def task_name(self) -> str:
        """Whole: the trial's name has it cut."""
        return self.row.need_text("task_name")

    @property
    def started_at(self) -> str:
        """For the order of attempts, which no file numbers."""
        return self.row.text("started_at") or ""

    @property
    def job_id(self) -> str | None:
        return self.row.member("config").text("job_id")

    @property
    def backend(self) -> str | None:
        return self.row.member("config").member("environment").text("type")

    @property
    def configured_model(self) -> str | None:
        return self.row.member("config").member("agent").text("model_name")

    @property
    def exception(self) -> Json | None:
        return self.row.member("exception_info") if self.row.has("exception_info") else None

    @property
    def exception_type(self) -> str | None:
        return self.exception.text("exception_type") if self.exception else None

    @property
    def status(self) -> str:
        """Harbor has no word for a trial that met no exception."""
        return self.exception_type or "completed"

    @property
    def evals_key(self) -> str:
        """The key of a job's statistics that this trial counts in."""
        agent = self.row.member("agent_info")
        model = agent.member("model_info").text("name")
        parts = [agent.text("name") or "unknown", model, self.row.text("source") or "adhoc"]
        return "__".join(part for part in parts if part)

    @property
    def exception_of_verifier(self) -> bool:
        """Whether the agent had ended when it was raised."""
        kind = self.exception_type
        if kind is None or kind in _OF_AGENT:
            return False
        graded = self.row.has("verifier") and not self.row.has("verifier_result")
        return kind in _OF_VERIFIER or graded

    def reached(self, phase: str) -> bool:
        """Whether a phase went well, as far as the next one tells."""
        if phase == "environment_setup":
            return self.row.has("agent_setup")
        if phase == "agent_setup":
            return self.row.has("agent_execution")
        if phase == "verifier":
            return self.row.has("verifier_result") or self.exception_of_verifier
        return True

    def phase_s(self, phase: str) -> float | None:
        """Seconds of a phase."""
        row, plain = self.row.member(phase), Clock(None)
        return seconds(plain.read(row, "started_at"), plain.read(row, "finished_at"))

    @property
    def failed_stage(self) -> Stage | None:
        """Where a trial that never got to its agent failed; null: it did, or unknown."""
        if self.exception is None or self.row.has("agent_execution"):
            return None
        if self.row.has("agent_setup"):
            return Stage.SETUP
        return Stage.SANDBOX_START if self.row.has("environment_setup") else None


def add_trial(run: ForeignRun, trial: Trial, clock: Clock, reward_key: str | None) -> Attempt:
    """All facts of a trial."""
    row = trial.row
    attempt = run.group(trial.task_name).attempt([row.text("id") or trial.name])
    attempt.start(clock.read(row, "started_at"), row.ref)
    _sandbox(attempt, trial, clock)
    if trial.trajectory is not None:
        add_steps(attempt, trial.trajectory, clock, _latencies(run, trial))
    if row.has("step_results"):
        run.note(
            f"{row.place} has several steps: their rewards are in its own, and no more is read"
        )
    _reward(run, attempt, trial, clock, reward_key)
    if row.has("finished_at"):
        _finish(attempt, trial, clock)
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


def _latencies(run: ForeignRun, trial: Trial) -> list[float]:
    """Seconds of each call, which terminus-2 keeps; only where there is one for each turn."""
    metadata = trial.row.member("agent_result").member("metadata")
    told = [each.as_number() for each in metadata.items("api_request_times_msec")]
    turns = len(trial.trajectory.turns) if trial.trajectory else 0
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
    attempt.fact(
        "reward_assigned",
        clock.read(row.member("verifier"), "finished_at"),
        result.ref if broken is None else broken.ref,
        value=_value(run, trial, rewards, reward_key),
        components=rewards,
        verifier="harbor",
        task_checksum=row.text("task_checksum"),
        tests_passed=tests["passed"] if tests else None,
        tests_failed=tests["failed"] if tests else None,
        verify_s=trial.phase_s("verifier"),
        error_type=trial.exception_type if broken else None,
        error=_error(broken) if broken else None,
    )


def _value(
    run: ForeignRun, trial: Trial, rewards: dict[str, float], reward_key: str | None
) -> float | None:
    """The one reward of a trial, or the one that the user names."""
    place = trial.row.member("verifier_result").at("rewards").place
    if reward_key is not None:
        if rewards and reward_key not in rewards:
            raise BadImport(
                f"{place} must have the reward {reward_key!r} of --set reward_key, got"
                f" {', '.join(rewards)}"
            )
        return rewards.get(reward_key)
    if len(rewards) > 1:
        run.note(
            f"{place} has several rewards ({', '.join(rewards)}), so the trial has none: say which"
            " with --set reward_key=NAME"
        )
        return None
    return next(iter(rewards.values()), None)


def _tests(trial: Trial) -> Counter[str] | None:
    """How tests went, by verifier/ctrf.json; null where it isn't there."""
    path = trial.folder / "verifier" / "ctrf.json"
    if not path.exists():
        return None
    summary = SourceFile.read(path, trial.root).json().member("results").member("summary")
    return Counter({name: summary.integer(name) or 0 for name in ("passed", "failed")})


def _finish(attempt: Attempt, trial: Trial, clock: Clock) -> None:
    row, told = trial.row, trial.row.member("agent_result")
    exception = None if trial.exception_of_verifier else trial.exception
    stop_reason = StopReason.SUBMITTED
    if exception is not None:
        stop_reason = _CAPS.get(trial.status, StopReason.ERROR)
    errored = stop_reason is StopReason.ERROR
    attempt.finish(
        clock.read(row, "finished_at"),
        row.ref,
        stop_reason=stop_reason,
        stage=trial.failed_stage,
        turns_known=bool(trial.trajectory and trial.trajectory.turns),
        policy_clock_s=trial.phase_s("agent_execution"),
        error_type=trial.exception_type if errored else None,
        error=_error(exception) if exception else None,
        foreign_status=trial.status,
        foreign_prompt_tokens=told.integer("n_input_tokens"),
        foreign_cached_tokens=told.integer("n_cache_tokens"),
        foreign_completion_tokens=told.integer("n_output_tokens"),
        foreign_cost_usd=told.number("cost_usd"),
    )
