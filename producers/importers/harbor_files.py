"""A trial's `result.json` as Harbor writes it, and what it tells of phases and failure. Pure, but
for reading the trajectory beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ledger.facts.lists import Stage, StopReason
from producers.importers.atif_file import AtifFile
from producers.importers.source import Json
from producers.importers.times import Clock, seconds

CAPS = {
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
_OF_AGENT = frozenset({"NonZeroAgentExitCodeError", *CAPS})


@dataclass(slots=True)
class Trial:
    """A trial's result.json and what lies beside it."""

    row: Json
    folder: Path
    root: Path
    models: set[str] = field(default_factory=set[str])
    """Names that its turns give, once they were read."""

    @classmethod
    def of(cls, row: Json, folder: Path, root: Path) -> Trial:
        """Raises BadImport."""
        row.need_text("task_name")
        return cls(row, folder, root)

    def trajectory(self) -> AtifFile | None:
        """The agent's steps, read anew each time: those of a whole job wouldn't fit into memory."""
        path = self.folder / "agent" / "trajectory.json"
        return AtifFile.read(path, self.root) if path.exists() else None

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
    def config(self) -> Json:
        return self.row.member("config")

    @property
    def backend(self) -> str | None:
        return self.config.member("environment").text("type")

    @property
    def configured_model(self) -> str | None:
        return self.config.member("agent").text("model_name")

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
