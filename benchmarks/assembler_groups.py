"""Groups as a producer tells them, encoded: what the assembler's benchmark feeds it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ledger.facts import VersionSpan
from ledger.log import EventLog, Record
from ledger.tokens import Tokens
from ledger.wire.encoder import Draft, FactEncoder, now_us

RUN = str(uuid.uuid4())
"""Of this process: a log may have been measured before."""
SIZE, TURNS = 8, 10
PROMPT, COMPLETION = 400, 120
"""Tokens that a turn adds."""
DECLARED: tuple[str, dict[str, Any]] = (
    "run_declared",
    {"kind": "train", "name": "benchmark", "configuration": "{}"},
)


@dataclass(slots=True)
class Told:
    """Encoded records of groups."""

    tokens: list[Record] = field(default_factory=list[Record])
    events: list[Record] = field(default_factory=list[Record])


class Teller:
    """Encodes what one producer tells."""

    def __init__(self) -> None:
        self._encoder = FactEncoder("agent", RUN)
        ids = list(range(PROMPT + COMPLETION))
        mask = [0] * PROMPT + [1] * COMPLETION
        self._tokens = Tokens(ids, mask, [0.0] * PROMPT + [-0.5] * COMPLETION)

    def tell(self, *facts: tuple[str, dict[str, Any]]) -> Told:
        """(name, fields) of facts as records."""
        encoded = self._encoder.encode([Draft(name, fields, now_us()) for name, fields in facts])
        assert not encoded.refused, encoded.refused
        return Told(encoded.tokens, encoded.events)

    def opened(self, group_id: str) -> tuple[str, dict[str, Any]]:
        fields = {"task_id": "task", "expected_size": SIZE, "policy_version": 0}
        return "group_opened", {"group_id": group_id, **fields}

    def started(self, ids: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "trajectory_started", {**ids, "task_id": "task", "queue_s": 0.5}

    def attempt(
        self, group_id: str, slot: int, number: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """All facts of one attempt."""
        ids = {"group_id": group_id, "slot": slot, "trajectory_id": str(uuid.uuid4())}
        yield self.started(ids)
        ids_of_sandbox = {"try_no": 0, "sandbox_id": f"sandbox-{number}-{slot}", "start_s": 1.9}
        yield "sandbox_started", {**ids, **ids_of_sandbox}
        for turn_no in range(TURNS):
            logprobs = [0.0] * PROMPT + [-0.01 * (number % 97 + turn_no + slot)] * COMPLETION
            tokens = Tokens(self._tokens.ids, self._tokens.loss_mask, logprobs)
            spans = [VersionSpan(0, 0, COMPLETION)]
            usage = {"completion_tokens": COMPLETION, "version_spans": spans, "tokens": tokens}
            yield "turn_completed", {**ids, "turn_no": turn_no, "engine": "engine-0", **usage}
            call = {"turn_no": turn_no, "tool_call_no": turn_no, "name": "bash", "wall_s": 0.2}
            yield "tool_call_completed", {**ids, **call}
        yield "reward_assigned", {**ids, "value": float(slot % 2), "verifier": "tests"}
        counts = {"turns_completed": TURNS, "turns_failed": 0, "tool_calls": TURNS}
        ends = {"stop_reason": "submitted", "reward_due": True}
        yield "trajectory_finished", {**ids, **ends, **counts}

    def group(self, number: int) -> Told:
        """A whole group."""
        group_id = str(uuid.uuid4())
        facts = [self.opened(group_id)]
        for slot in range(SIZE):
            facts += self.attempt(group_id, slot, number)
        return self.tell(*facts)


def write(log: EventLog, told: Told) -> None:
    """Payloads before the facts that name them."""
    log.append("tokens", told.tokens)
    log.append("events", told.events)
