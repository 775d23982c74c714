"""One trajectory of mini-swe-agent: its messages as turns and tool calls.

Invariants:

1. A turn's and a call's seconds are the gap behind the message before; the first turn has none,
   since the messages before it carry no time.
2. A call that the file counts and has no answer of is a failed turn: nothing else is left of it.
3. A command without a result (the one that submits) is a tool call without an exit code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ledger.facts.lists import EngineStage, Stage, StopReason
from producers.importers.run import Attempt
from producers.importers.source import Json, SourceFile
from producers.importers.times import UNKNOWN, Moment, epoch, seconds


@dataclass(slots=True)
class Trajectory:
    """A .traj.json file, without its messages: those of a whole run wouldn't fit into memory."""

    path: Path
    root: Path
    row: Json
    instance_id: str
    statement: str | None
    """The first message of the user: the task as the agent was told it."""
    counted: Counter[str] = field(default_factory=Counter[str])
    """What the messages add up to, by figure."""
    last: Moment = UNKNOWN
    """Time of the last message that has one."""

    @classmethod
    def read(cls, path: Path, root: Path) -> Trajectory:
        """Raises BadImport for a file of another format."""
        row = SourceFile.read(path, root).json()
        form = row.text("trajectory_format") if isinstance(row.value, dict) else None
        if form is None or not form.startswith("mini-swe-agent-1"):
            raise row.wrong("a trajectory of mini-swe-agent, format mini-swe-agent-1.x")
        messages, source = row.items("messages"), row.source
        rest = {key: each for key, each in row.object().items() if key != "messages"}
        found = cls(
            path,
            root,
            Json(rest, SourceFile(source.name, source.sha256, "")),
            row.text("instance_id") or path.name.removesuffix(".traj.json"),
            _statement(messages),
        )
        found._count(messages)
        return found

    def messages(self) -> list[Json]:
        """Read again. Raises BadImport."""
        return SourceFile.read(self.path, self.root).json().items("messages")

    @property
    def info(self) -> Json:
        return self.row.member("info")

    @property
    def config(self) -> Json:
        return self.info.member("config")

    @property
    def policy(self) -> list[object]:
        """How agent and model are configured."""
        return [self.config.member("agent").value, self.config.member("model").value]

    @property
    def version(self) -> str | None:
        return self.info.text("mini_version")

    @property
    def image(self) -> str | None:
        return self.config.member("environment").text("image")

    @property
    def exit_status(self) -> str | None:
        return self.info.text("exit_status")

    @property
    def api_calls(self) -> int | None:
        return self.info.member("model_stats").integer("api_calls")

    @property
    def cost(self) -> float | None:
        return self.info.member("model_stats").number("instance_cost")

    @property
    def failed_calls(self) -> int:
        """Calls that were counted and have no answer."""
        return max((self.api_calls or 0) - self.counted["assistant messages"], 0)

    def finish(self, attempt: Attempt, stop_reason: StopReason) -> None:
        """How it ended, by its own account."""
        status = self.exit_status
        errored = stop_reason is StopReason.ERROR
        error = self.info.text("exception_str") or self.info.text("traceback")
        attempt.finish(
            self.last.derived(),
            self.info.ref,
            stop_reason=stop_reason,
            stage=Stage.MODEL if errored and self.failed_calls else None,
            error_type=status if errored else None,
            error=error if errored else None,
            foreign_status=status,
            foreign_calls=self.api_calls,
            foreign_cost_usd=self.cost,
        )

    def _count(self, messages: list[Json]) -> None:
        for message in messages:
            role, extra = message.text("role"), message.member("extra")
            if role == "assistant":
                used = extra.member("response").member("usage")
                self.counted["assistant messages"] += 1
                self.counted["tool calls"] += len(extra.items("actions"))
                self.counted["prompt tokens"] += used.integer("prompt_tokens") or 0
                self.counted["completion tokens"] += used.integer("completion_tokens") or 0
                cached = used.member("prompt_tokens_details").integer("cached_tokens")
                self.counted["cached tokens"] += cached or 0
            elif role == "tool":
                self.counted["tool results"] += 1


def _statement(messages: list[Json]) -> str | None:
    for each in messages:
        if each.text("role") == "user":
            content = each.at("content").value
            return content if isinstance(content, str) else None
    return None


def add_attempt(attempt: Attempt, trajectory: Trajectory) -> None:
    """All facts of an attempt but its reward and its end."""
    _Reader(attempt, trajectory).read()


class _Reader:
    def __init__(self, attempt: Attempt, trajectory: Trajectory) -> None:
        self._attempt = attempt
        self._trajectory = trajectory
        self._before = UNKNOWN
        self._waiting: list[tuple[str | None, Json]] = []
        """Commands of the last turn without a result yet, with their ids."""

    def read(self) -> None:
        trajectory = self._trajectory
        messages = trajectory.messages()
        first = next((each for each in messages if each.text("role") == "assistant"), None)
        began = UNKNOWN if first is None else self._time(first).derived()
        self._attempt.start(began, trajectory.row.ref)
        self._sandbox()
        for message in messages:
            role = message.text("role")
            if role == "assistant":
                self._turn(message)
            elif role == "tool":
                self._result(message)
        self._without_result()
        self._failed_turns()
        trajectory.last = self._before

    def _sandbox(self) -> None:
        """The container's own id isn't stored; the instance's stands for it."""
        environment = self._trajectory.config.member("environment")
        if self._trajectory.image is None:
            return
        self._attempt.fact(
            "sandbox_started",
            UNKNOWN,
            environment.ref,
            try_no=0,
            backend=environment.text("executable"),
            template=self._trajectory.image,
            sandbox_id=self._trajectory.instance_id,
        )

    def _turn(self, message: Json) -> None:
        self._without_result()
        extra, at = message.member("extra"), self._time(message)
        response = extra.member("response")
        usage = response.member("usage")
        choices = response.items("choices")
        self._attempt.fact(
            "turn_completed",
            at,
            message.ref,
            segment=0,
            model=response.text("model"),
            request_id=response.text("id"),
            prompt_tokens=usage.integer("prompt_tokens"),
            cached_tokens=usage.member("prompt_tokens_details").integer("cached_tokens"),
            completion_tokens=usage.integer("completion_tokens"),
            client_s=seconds(self._before, at),
            cost_usd=extra.number("cost"),
            finish_reason=choices[0].text("finish_reason") if choices else None,
        )
        self._before = at if at.at is not None else self._before
        self._waiting = [(each.text("tool_call_id"), each) for each in extra.items("actions")]

    def _result(self, message: Json) -> None:
        """A result belongs to the command of its id; without one, to the next."""
        if not self._waiting:
            raise message.wrong("the result of a command of the message before it")
        wanted = message.text("tool_call_id")
        place = next((i for i, each in enumerate(self._waiting) if each[0] == wanted), 0)
        _, action = self._waiting.pop(place)
        extra, at = message.member("extra"), self._time(message)
        problem = extra.text("exception_info") or None
        kind = extra.text("exception_type") or ("exception" if problem else None)
        self._attempt.fact(
            "tool_call_completed",
            at,
            message.ref,
            name="bash",
            arguments=action.text("command"),
            wall_s=seconds(self._before, at),
            exit_code=extra.integer("returncode"),
            timed_out="timed out" in problem if problem else False,
            output=extra.text("raw_output"),
            error_type=kind,
            error=problem,
        )
        self._before = at if at.at is not None else self._before

    def _without_result(self) -> None:
        submission = self._trajectory.info.text("submission")
        submitted = self._trajectory.exit_status == "Submitted"
        for _, action in self._waiting:
            self._attempt.fact(
                "tool_call_completed",
                UNKNOWN,
                action.ref,
                name="bash",
                arguments=action.text("command"),
                output=submission if submitted else None,
            )
        self._waiting = []

    def _failed_turns(self) -> None:
        info = self._trajectory.info
        for number in range(self._trajectory.failed_calls):
            last = number == self._trajectory.failed_calls - 1
            self._attempt.fact(
                "turn_failed",
                UNKNOWN,
                info.ref,
                segment=0,
                stage=EngineStage.UNKNOWN,
                error_type=(self._trajectory.exit_status if last else None) or "unknown",
                error=info.text("exception_str") if last else None,
            )

    def _time(self, message: Json) -> Moment:
        return epoch(message.member("extra"), "timestamp")
