"""One trace of verifiers v1 as an attempt: its box, its calls, its tools, its rewards.

Its `prompt_tokens` leave out what the provider's cache held; ours have them. Tool results carry no
seconds and no exit code, and their time is that of the request that they were sent with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from ledger.facts import VersionSpan
from ledger.facts.lists import EngineStage, Stage, StopReason
from producers.importers.run import Attempt
from producers.importers.source import Json
from producers.importers.times import UNKNOWN, Moment, epoch, seconds

FORM = "verifiers"
_STOPPED = {
    "max_turns": StopReason.TURN_CAP,
    "max_input_tokens": StopReason.CONTEXT_CAP,
    "max_total_tokens": StopReason.CONTEXT_CAP,
    "compaction_failed": StopReason.CONTEXT_CAP,
    "max_output_tokens": StopReason.OUTPUT_CAP,
}
_STAGES = (
    ("scoring", Stage.VERIFY),
    ("finalize", Stage.VERIFY),
    ("agent", Stage.MODEL),
    ("setup", Stage.SETUP),
    ("boot", Stage.SANDBOX_START),
)
"""Spans of a trace, the last first, and the stage that an attempt was in when one had begun."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The versions that were live while an episode was sampled."""

    start: int | None
    end: int | None

    @classmethod
    def of(cls, episode: Json) -> Self:
        """Unknown where the run doesn't tell it."""
        policy = episode.member("run").member("work").member("policy")
        return cls(policy.integer("start"), policy.integer("end"))

    @property
    def known(self) -> int | None:
        """The one version that sampled all of it; null: unknown, or several."""
        return self.start if self.start == self.end else None


def add_trace(attempt: Attempt, trace: Json, policy: Policy) -> None:
    """All that a trace says of an attempt. Raises BadImport."""
    timing = trace.member("timing")
    attempt.start(_at(timing, "start"), trace.ref)
    _add_box(attempt, trace, timing)
    turns = _add_calls(attempt, trace, policy)
    _add_tools(attempt, trace, turns)
    _add_reward(attempt, trace, timing)
    _finish(attempt, trace, timing)


def _add_box(attempt: Attempt, trace: Json, timing: Json) -> None:
    """Only where the box has a name, and was started for this attempt: one that was borrowed is
    another's, and would count twice."""
    runtime = trace.member("agent").member("runtime")
    box = runtime.text("id")
    boot = timing.member("boot")
    if box is None or runtime.flag("borrowed") is True or _at(boot, "end") is UNKNOWN:
        return
    here: dict[str, Any] = {"try_no": 0, "backend": runtime.text("type"), "sandbox_id": box}
    started = _at(boot, "end")
    attempt.fact("sandbox_started", started, boot.ref, start_s=_span(boot), **here)
    setup = timing.member("setup")
    if (prepared := _at(setup, "end")) is not UNKNOWN:
        attempt.fact("sandbox_prepared", prepared, setup.ref, setup_s=_span(setup), **here)


def _add_calls(attempt: Attempt, trace: Json, policy: Policy) -> dict[int, int]:
    """Calls as turns; the node that each committed -> its turn."""
    turns: dict[int, int] = {}
    for call in trace.items("calls"):
        span = call.member("time")
        at, spent = _at(span, "end"), _span(span)
        if call.has("error"):
            error = call.member("error")
            attempt.fact(
                "turn_failed",
                at,
                call.ref,
                stage=EngineStage.UNKNOWN,
                model=call.text("model"),
                error_type=error.need_text("type"),
                error=error.text("message"),
                http_status=error.integer("status_code"),
                seconds=spent,
                tokens_so_far=call.member("usage").integer("completion_tokens"),
            )
            continue
        turn_no = attempt.next_turn
        attempt.fact(
            "turn_completed",
            at,
            call.ref,
            model=call.text("model"),
            client_s=spent,
            finish_reason=call.text("finish_reason"),
            **_usage(call.member("usage"), policy),
        )
        if (node := call.integer("node")) is not None:
            turns[node] = turn_no
    return turns


def _usage(usage: Json, policy: Policy) -> dict[str, Any]:
    """Tokens of a call; the prompt with what was cached."""
    fresh, cached = usage.integer("prompt_tokens"), usage.integer("cached_input_tokens")
    sampled = usage.integer("completion_tokens")
    spans = []
    if policy.known is not None and sampled is not None:
        spans = [VersionSpan(policy.known, 0, sampled)]
    return {
        "prompt_tokens": None if fresh is None else fresh + (cached or 0),
        "cached_tokens": cached,
        "completion_tokens": sampled,
        "cost_usd": usage.number("cost"),
        "version_spans": spans,
    }


def _add_tools(attempt: Attempt, trace: Json, turns: dict[int, int]) -> None:
    """Tool calls that the policy made and that were answered."""
    asked: dict[str, tuple[Json, int]] = {}
    for place, node in enumerate(trace.items("nodes")):
        message = node.member("message")
        if node.flag("sampled") is True and place in turns:
            for call in message.items("tool_calls"):
                asked[call.need_text("id")] = (call, turns[place])
        if message.text("role") != "tool":
            continue
        call, turn_no = asked.pop(message.need_text("tool_call_id"), (None, 0))
        if call is None:
            continue  # written into the prompt: the policy never asked for it
        attempt.fact(
            "tool_call_completed",
            _at(node, "timestamp").phase_only(),
            node.ref,
            turn_no=turn_no,
            name=call.need_text("name"),
            arguments=call.text("arguments"),
            output=_text(message.at("content")),
        )


def _text(content: Json) -> str | None:
    """The text of a message, pictures left out."""
    if content.value is None or isinstance(content.value, str):
        return content.value
    texts = [part.text("text") for part in content.array() if part.text("type") == "text"]
    return "\n".join(text or "" for text in texts)


def _add_reward(attempt: Attempt, trace: Json, timing: Json) -> None:
    """The weighted sum, as verifiers has it; null where a reward was due and scoring didn't run."""
    rewards = trace.members("rewards")
    if not rewards:
        return
    parts: dict[str, float] = {}
    total = 0.0
    for name, reward in rewards.items():
        if reward.value is None:
            continue
        score = reward.number("score")
        if score is None:  # so verifiers writes what is no finite number
            total = math.nan
            continue
        weight = reward.number("weight")
        parts[name] = score
        total += score * (1.0 if weight is None else weight)
    scoring = timing.member("scoring")
    attempt.reward(
        _at(scoring, "end"),
        trace.at("rewards").ref,
        value=total if parts or math.isnan(total) else None,
        components=parts,
        verifier=FORM,
        verifier_version=trace.member("verifiers").text("version"),
        verify_s=_span(scoring),
    )


def _finish(attempt: Attempt, trace: Json, timing: Json) -> None:
    stopped = trace.text("stop_condition")
    errors = trace.items("errors")
    last = errors[-1] if errors and trace.flag("ok") is not True else None
    if last is not None:
        stop = StopReason.ERROR
    elif trace.flag("is_timeout") is True:
        stop = StopReason.CLOCK_CAP
    else:
        stop = _STOPPED.get(stopped or "", _unforced(trace))
    spans = [timing.member(name) for name, _ in _STAGES]
    ended = next((at for span in spans if (at := _at(span, "end")) is not UNKNOWN), UNKNOWN)
    stage = next(
        (
            stage
            for span, (_, stage) in zip(spans, _STAGES, strict=True)
            if _at(span, "start") is not UNKNOWN
        ),
        None,
    )
    attempt.finish(
        ended,
        trace.ref,
        stop_reason=stop,
        stage=stage,
        policy_clock_s=_span(timing.member("agent")),
        error_type=last.text("type") if last else None,
        error=last.text("message") if last else None,
        foreign_status=stopped,
    )


def _unforced(trace: Json) -> StopReason:
    """How an attempt ended that no limit of verifiers' own did. A last answer that was cut off
    submitted nothing; by verifiers' account it is truncated too."""
    answers = [call for call in trace.items("calls") if not call.has("error")]
    cut = bool(answers) and answers[-1].text("finish_reason") == "length"
    return StopReason.OUTPUT_CAP if cut else StopReason.SUBMITTED


def _at(row: Json, name: str) -> Moment:
    """A time; verifiers writes 0 for one that never came."""
    return UNKNOWN if not row.number(name) else epoch(row, name)


def _span(row: Json) -> float | None:
    return seconds(_at(row, "start"), _at(row, "end"))
