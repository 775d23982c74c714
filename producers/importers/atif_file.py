"""One trajectory in ATIF, with its continuations and sub-agents, as turns and tool calls.

Invariants:

1. A turn is an agent's step with metrics; a step is not one call (claude-code writes several steps
   of one answer). Copied context is another file's, and counts nothing.
2. Tokens of a sub-agent are the attempt's: it asked for them. A file that is named and isn't there
   is told by name, and its tokens are missed by name.
3. ATIF has one time a step, and no duration, exit code, status or reward: they stay null.

Read from harbor 0.26.0's models (ATIF v1.0 to v1.8) and real files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from ledger.tokens import Tokens
from producers.importers.run import Attempt
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.times import Clock, Moment

PREFIX = "ATIF-v1."


@dataclass(slots=True)
class Totals:
    """What metrics of steps add up to, or final_metrics say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None

    def add(self, metrics: Json) -> None:
        """Count one step's."""
        self.prompt_tokens = _sum(self.prompt_tokens, metrics.integer("prompt_tokens"))
        self.cached_tokens = _sum(self.cached_tokens, metrics.integer("cached_tokens"))
        self.completion_tokens = _sum(self.completion_tokens, metrics.integer("completion_tokens"))
        cost = metrics.number("cost_usd")
        if cost is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost

    @classmethod
    def final(cls, row: Json) -> Totals:
        """As a root's final_metrics state them."""
        told = row.member("final_metrics")
        return cls(
            told.integer("total_prompt_tokens"),
            told.integer("total_cached_tokens"),
            told.integer("total_completion_tokens"),
            told.number("total_cost_usd"),
        )


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


@dataclass(slots=True)
class AtifFile:
    """A root trajectory and all that it refers to."""

    row: Json
    folder: Path
    root: Path
    steps: list[Json] = field(default_factory=list[Json])
    """Its own, its continuations' and its sub-agents', in order, without copied context."""
    files: list[str] = field(default_factory=list[str])
    """Names of all files that were read for it."""
    missing: list[str] = field(default_factory=list[str])
    """Files that are named and aren't there."""
    last: Json | None = None
    """The last continuation's root: its final_metrics are the whole's."""

    @classmethod
    def read(cls, path: Path, root: Path) -> AtifFile:
        """Raises BadImport for a file that isn't ATIF, or refers to itself."""
        return cls.of(SourceFile.read(path, root).json(), path.parent, root)

    @classmethod
    def of(cls, row: Json, folder: Path, root: Path) -> AtifFile:
        """The same of a file that is read already."""
        found = cls(row, folder, root)
        found._take(found.row)
        return found

    @property
    def is_a_whole(self) -> bool:
        """Whether nothing that it refers to is missing."""
        return not self.missing

    @property
    def final(self) -> Totals:
        """The totals that it states."""
        return Totals.final(self.last or self.row)

    @property
    def turns(self) -> list[Json]:
        """Steps that are turns."""
        return [each for each in self.steps if _is_turn(each)]

    @property
    def models(self) -> set[str]:
        """Names of models, by the steps' account."""
        return {name for each in self.turns if (name := each.text("model_name")) is not None}

    @property
    def tool_calls(self) -> int:
        return sum(len(each.items("tool_calls")) for each in self.steps)

    def _take(self, row: Json) -> None:
        check(row)
        name = row.source.name + row.pointer
        if name in self.files:
            raise BadImport(f"{row.place} must not refer to itself")
        self.files.append(name)
        inside = {
            each.text("trajectory_id") or each.text("session_id"): each
            for each in row.items("subagent_trajectories")
        }
        for step in row.items("steps"):
            if step.flag("is_copied_context"):
                continue
            self.steps.append(step)
            for result in step.member("observation").items("results"):
                for reference in result.items("subagent_trajectory_ref"):
                    self._sub_agent(reference, inside)
        self._continue(row)

    def _sub_agent(self, reference: Json, inside: dict[str | None, Json]) -> None:
        told = reference.text("trajectory_id") or reference.text("session_id")
        if told in inside:
            self._take(inside[told])
            return
        path = reference.text("trajectory_path")
        if path is not None and (found := self._file(path)) is not None:
            self._take(found)
        else:
            self.missing.append(path or told or reference.place)

    def _continue(self, row: Json) -> None:
        name = row.text("continued_trajectory_ref")
        if name is None:
            return
        found = self._file(name)
        if found is None:
            self.missing.append(name)
            return
        if row is (self.last or self.row):  # and not of a sub-agent, whose totals are its own
            self.last = found
        self._take(found)

    def _file(self, name: str) -> Json | None:
        """A file that is named, beside this one; of a copy whose names begin with the task's, the
        only one that ends so."""
        plain = self.folder / Path(name).name
        found = [plain] if plain.exists() else sorted(self.folder.glob(f"*{Path(name).name}"))
        stem = self.row.source.name.rpartition("/")[2].removesuffix(".json")
        own = [each for each in found if each == plain or each.name.startswith(stem)]
        return SourceFile.read(own[0], self.root).json() if len(own) == 1 else None


def check(row: Json) -> None:
    """Raise BadImport for what isn't ATIF."""
    version = row.text("schema_version") if isinstance(row.value, dict) else None
    if version is None or not version.startswith(PREFIX):
        raise row.wrong(f"a trajectory in ATIF, with schema_version {PREFIX}x")
    if not isinstance(row.at("steps").value, list):
        raise row.at("steps").wrong("an array of steps")


def scaffold_of(agent: Json) -> str:
    """Name and version of an agent, as far as they are told."""
    return " ".join(each for each in (agent.text("name"), agent.text("version")) if each)


def _is_turn(step: Json) -> bool:
    return (
        step.text("source") == "agent"
        and step.has("metrics")
        and step.integer("llm_call_count") != 0
    )


def add_steps(
    attempt: Attempt, trajectory: AtifFile, clock: Clock, client_s: list[float] | None = None
) -> None:
    """The turns and tool calls of a trajectory. `client_s`, (n,) seconds of its n turns, where the
    harness kept them."""
    sequence = _Sequence()
    seconds = iter(client_s or [])
    for step in trajectory.steps:
        at = clock.read(step, "timestamp")
        if _is_turn(step):
            _turn(attempt, step, at, sequence, next(seconds, None))
        _tool_calls(attempt, step, at)


def _turn(
    attempt: Attempt, step: Json, at: Moment, sequence: _Sequence, client_s: float | None
) -> None:
    metrics = step.member("metrics")
    tokens, reason = sequence.extended(metrics)
    attempt.fact(
        "turn_completed",
        at,
        step.ref,
        segment=sequence.segment,
        segment_reason=reason,
        model=step.text("model_name"),
        prompt_tokens=metrics.integer("prompt_tokens"),
        cached_tokens=metrics.integer("cached_tokens"),
        completion_tokens=metrics.integer("completion_tokens"),
        cost_usd=metrics.number("cost_usd"),
        client_s=client_s,
        finish_reason=step.member("extra").text("stop_reason"),
        **({} if tokens is None else {"tokens": tokens}),
    )


def _tool_calls(attempt: Attempt, step: Json, at: Moment) -> None:
    """Results belong to the calls that they name; those that name none, by their place."""
    results = step.member("observation").items("results")
    named = {each.text("source_call_id"): each for each in results if each.has("source_call_id")}
    rest = iter([each for each in results if not each.has("source_call_id")])
    for call in step.items("tool_calls"):
        result = named.get(call.text("tool_call_id")) or next(rest, None)
        attempt.fact(
            "tool_call_completed",
            at.phase_only(),
            call.ref,
            name=call.text("function_name") or "unknown",
            arguments=json.dumps(call.at("arguments").value, sort_keys=True),
            output=None if result is None else text_of(result.at("content")),
        )


def text_of(content: Json) -> str | None:
    """Content as text: its parts joined, a part that is no text as its JSON."""
    if content.value is None or isinstance(content.value, str):
        return content.as_text()
    if not isinstance(content.value, list):
        return json.dumps(content.value, sort_keys=True)
    parts = [
        each.text("text")
        if isinstance(each.value, dict) and isinstance(each.value.get("text"), str)
        else json.dumps(each.value, sort_keys=True)
        for each in content.array()
    ]
    return "\n".join(part for part in parts if part is not None)


@dataclass(slots=True)
class _Sequence:
    """The token ids of an attempt, as far as its steps give them."""

    ids: list[int] = field(default_factory=list[int])
    """Of the present segment."""
    segment: int = 0

    def extended(self, metrics: Json) -> tuple[Tokens | None, str | None]:
        """What a turn added, and why a new segment begins with it, if one does. Nothing where its
        ids or logprobs aren't there in full."""
        prompt, completion, logprobs = (
            metrics.at(name).value
            for name in ("prompt_token_ids", "completion_token_ids", "logprobs")
        )
        if not prompt or not completion or not logprobs or len(completion) != len(logprobs):
            return None, None
        reason = None
        if self.ids != prompt[: len(self.ids)]:
            self.segment, self.ids, reason = (
                self.segment + 1,
                [],
                "the prompt doesn't extend the tokens before it",
            )
        added = prompt[len(self.ids) :]
        self.ids = [*prompt, *completion]
        tokens = Tokens(
            [*added, *completion],
            [0] * len(added) + [1] * len(completion),
            [0.0] * len(added) + list(logprobs),
        )
        return tokens, reason
