"""Turns, failed turns and tool calls -> steps of an ATIF trajectory. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ledger.facts import Excerpt, ToolCallCompleted, TurnCompleted, TurnFailed

Members = dict[str, Any]


def filled(**members: Any) -> Members:
    """The members that aren't null."""
    return {name: value for name, value in members.items() if value is not None}


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def failed_step(failed: TurnFailed) -> Members:
    extra = filled(turn_no=failed.turn_no, stage=str(failed.stage), http_status=failed.http_status,
                    seconds=failed.seconds)  # fmt: skip
    text = text_of(failed.error) if failed.error else ""
    return filled(
        source="system",
        message=f"{failed.error_type}: {text}" if text else failed.error_type,
        timestamp=iso(failed.occurred_at),
        extra=extra,
    )


def agent_step(
    turn: TurnCompleted | None, calls: Sequence[ToolCallCompleted], ids: Members
) -> Members:
    """A turn with the calls that it asked for; calls of no turn are a step without an inference."""
    metrics = None
    if turn is not None:
        metrics = filled(
            prompt_tokens=turn.prompt_tokens,
            completion_tokens=turn.completion_tokens,
            cached_tokens=turn.cached_tokens,
            cost_usd=turn.cost_usd,
            extra=filled(
                client_s=turn.client_s,
                engine_s=turn.engine_s,
                queue_s=turn.queue_s,
                request_id=turn.request_id,
            )
            or None,
            **ids,
        )
    extra = filled(
        stop_reason=turn.finish_reason if turn else None,
        segment=turn.segment if turn else None,
        policy_versions=[[span.policy_version, span.start, span.end] for span in turn.version_spans]
        if turn and turn.version_spans
        else None,
    )
    return filled(
        source="agent",
        message="",
        timestamp=iso(turn.occurred_at if turn else calls[0].occurred_at),
        model_name=turn.model if turn else None,
        llm_call_count=0 if turn is None else 1,
        metrics=metrics,
        tool_calls=[_call(each) for each in calls] or None,
        observation={"results": [_result(each) for each in calls]} if calls else None,
        extra=extra or None,
    )


def _call(call: ToolCallCompleted) -> Members:
    extra = filled(wall_s=call.wall_s, sandbox_s=call.sandbox_s, sandbox_id=call.sandbox_id)
    return filled(
        tool_call_id=_call_id(call),
        function_name=call.name,
        arguments=_arguments(call.arguments),
        extra=extra or None,
    )


def _call_id(call: ToolCallCompleted) -> str:
    return f"call_{call.tool_call_no}"


def _arguments(text: Excerpt | None) -> Members:
    """As the policy gave them, where the whole is kept and is an object; else under `text`."""
    if text is None:
        return {}
    if text.whole:
        try:
            value: Any = json.loads(text.head)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return {str(name): item for name, item in value.items()}
    return {"text": text_of(text)}


def _result(call: ToolCallCompleted) -> Members:
    extra = filled(
        exit_code=call.exit_code,
        timed_out=call.timed_out,
        error_type=call.error_type,
        error=text_of(call.error) if call.error else None,
    )
    return filled(
        source_call_id=_call_id(call),
        content=text_of(call.output) if call.output else None,
        extra=extra or None,
    )


def text_of(excerpt: Excerpt) -> str:
    """An excerpt as one text, which says how much is left out."""
    if excerpt.whole:
        return excerpt.head
    left_out = excerpt.size - len(excerpt.head) - len(excerpt.tail)
    gap = f"\n[... {left_out} characters left out, sha256 of the whole {excerpt.sha256} ...]\n"
    return excerpt.head + gap + excerpt.tail
