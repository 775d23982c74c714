"""A foreign run as drafts of facts: groups, their attempts, and what was said of them.

Invariants:

1. An event id is derived from the run's key, the fact's name and what the fact is about (its turn,
   call, try, verifier ...), so that the same content gives the same ids from anywhere.
2. No two facts are about the same: a foreign id that comes twice is refused, not merged.
3. A text of any length fits: long ones are kept as an excerpt, size and digest.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Sequence
from functools import cache
from typing import Any, get_type_hints

from ledger.avro import wire_types
from ledger.facts import Excerpt
from ledger.facts.lists import RunKind, StopReason
from ledger.wire.encoder import Draft
from ledger.wire.schema import optional
from producers.importers.claims import Claim
from producers.importers.source import BadImport, digest_of
from producers.importers.times import UNKNOWN, Moment, earliest

_IDS = uuid.UUID("3f0c6a57-7a52-5c64-9a0f-2b6a0f3f8f11")
"""Namespace of the ids of foreign runs."""

MAX_WORD = 500
"""Characters of a name, status or id; a longer one is cut, with its digest."""

_ABOUT = (
    "group_id", "trajectory_id", "task_id", "turn_no", "tool_call_no", "try_no", "verifier",
    "verifier_version", "step", "policy_version", "engine", "batch_id",
)  # fmt: skip
"""Fields that say what a fact is about."""
_UUIDS = ("group_id", "trajectory_id", "batch_id")
"""Those of them that mean nothing to the user."""

Key = Sequence[str | int]


class ForeignRun:
    """One run of another system."""

    def __init__(self, form: str, key: Key, *, kind: RunKind, name: str, ref: str) -> None:
        self.form = form
        self.run_id = str(uuid.uuid5(_IDS, json.dumps([form, *key])))
        self.kind = kind
        self.name = name
        self.claims: list[Claim] = []
        self.notes: list[str] = []
        self.groups: dict[str, Group] = {}
        """By group id."""
        self.other_facts: list[Draft] = []
        """Facts of the run itself."""
        self._ref = ref
        self._declared: dict[str, Any] = {}
        self._declared_at = UNKNOWN
        self._tasks: dict[str, Draft] = {}
        self._refs: dict[str, str] = {}

    @property
    def attempts(self) -> list[Attempt]:
        """Of all groups, in the order in which they were added."""
        return [attempt for group in self.groups.values() for attempt in group.attempts]

    @property
    def has_content(self) -> bool:
        """Whether there is anything beside what the run was configured with."""
        return bool(self.attempts) or any(
            fact.name != "resources_declared" for fact in self.other_facts
        )

    def declare(self, at: Moment = UNKNOWN, **fields: Any) -> None:
        """Fields of run_declared. May be called again: they add up."""
        self._declared |= fields
        if at.at is not None:
            self._declared_at = at

    def task(self, task_id: str, ref: str, **fields: Any) -> None:
        """Declare a task, once; a second call changes nothing."""
        if task_id not in self._tasks:
            self._tasks[task_id] = self.draft(
                "task_declared", UNKNOWN, ref, {"task_id": task_id, **fields}
            )

    def group(self, task_id: str, key: Key = (), **opened: Any) -> Group:
        """The group of a task, made at the first call; with a key, one of its groups. `opened` are
        fields of group_opened."""
        group_id = self.an_id("group", task_id, *key)
        if group_id not in self.groups:
            self.groups[group_id] = Group(self, group_id, task_id, opened)
        return self.groups[group_id]

    def fact(self, name: str, at: Moment, ref: str, /, part: Key = (), **fields: Any) -> None:
        """A fact of the run itself; `part` tells facts apart that are about the same."""
        self.other_facts.append(self.draft(name, at, ref, fields, part))

    def claim(self, what: str, foreign: Any, sql: str, place: str, **more: Any) -> None:
        """What the foreign files say of themselves; see `claims.Claim`."""
        self.claims.append(Claim(what, foreign, sql, place, **more))

    def note(self, text: str) -> None:
        """Something that the user has to know."""
        self.notes.append(text)

    def an_id(self, *key: str | int) -> str:
        """The UUID of something in this run."""
        return str(uuid.uuid5(uuid.UUID(self.run_id), json.dumps(key)))

    def draft(
        self, name: str, at: Moment, ref: str, fields: dict[str, Any], part: Key = ()
    ) -> Draft:
        """A fact with its envelope. Raises BadImport for a second one about the same."""
        about = {each: str(fields[each]) for each in _ABOUT if fields.get(each) is not None}
        event_id = self.an_id(name, json.dumps(about), *part)
        if (first := self._refs.get(event_id)) is not None:
            shown = ", ".join(f"{key} {each}" for key, each in about.items() if key not in _UUIDS)
            raise BadImport(
                f"{name} of {shown or 'the run'} must come once: it stands at {first} and at {ref}"
            )
        self._refs[event_id] = ref
        envelope = {
            "event_id": event_id,
            "run_id": self.run_id,
            "occurred_at": at.at,
            "time_quality": at.quality,
            "source_ref": ref,
        }
        return Draft(name, envelope | _fitting(name, fields), 0)

    def drafts(self) -> list[Draft]:
        """Every fact, each behind those that it depends on."""
        self._refs.clear()
        slots = [len(group.slots) for group in self.groups.values()]
        tasks = {group.task_id for group in self.groups.values()} | self._tasks.keys()
        equal = slots[0] if len(set(slots)) == 1 and len(slots) == len(tasks) else None
        scope = {
            "kind": self.kind,
            "name": self.name,
            "tasks": len(tasks) if tasks else None,
            "attempts_per_task": equal,
            "subset_sha256": digest_of("\n".join(sorted(tasks))),
        }
        began = earliest([attempt.began for attempt in self.attempts])
        at = self._declared_at if self._declared_at.at is not None else began
        declared = self.draft("run_declared", at, self._ref, scope | self._declared)
        grouped = [draft for group in self.groups.values() for draft in group.drafts()]
        return [declared, *self._tasks.values(), *grouped, *self.other_facts]


class Group:
    """The attempts at one task that were scored together."""

    def __init__(
        self, run: ForeignRun, group_id: str, task_id: str, opened: dict[str, Any]
    ) -> None:
        self.run = run
        self.group_id = group_id
        self.task_id = task_id
        self.attempts: list[Attempt] = []
        self.slots: set[int] = set()
        self._opened = opened

    def attempt(self, key: Key, *, replaces: Attempt | None = None) -> Attempt:
        """A new attempt, in the next slot or in that of the one it replaces."""
        slot = len(self.slots) if replaces is None else replaces.slot
        self.slots.add(slot)
        attempt = Attempt(self, self.run.an_id("attempt", *key), slot, replaces)
        self.attempts.append(attempt)
        return attempt

    def reserve(self) -> None:
        """A slot that no attempt was started in."""
        self.slots.add(len(self.slots))

    def drafts(self) -> list[Draft]:
        """group_opened, and the attempts' facts."""
        began = earliest([attempt.began for attempt in self.attempts])
        fields = {"task_id": self.task_id, "expected_size": len(self.slots)} | self._opened
        ref = str(fields.pop("ref", None) or (self.attempts[0].ref if self.attempts else ""))
        ids = {"group_id": self.group_id}
        opened = self.run.draft("group_opened", began, ref, ids | fields)
        return [opened, *[draft for attempt in self.attempts for draft in attempt.drafts]]


class Attempt:
    """One attempt: its facts, counted as they are added."""

    def __init__(
        self, group: Group, trajectory_id: str, slot: int, replaces: Attempt | None
    ) -> None:
        self.group = group
        self.trajectory_id = trajectory_id
        self.slot = slot
        self.replaces = replaces
        self.began = UNKNOWN
        self.ref = ""
        self.drafts: list[Draft] = []
        self.counts: dict[str, int] = {}
        """Facts by name."""

    @property
    def next_turn(self) -> int:
        """The number of the next turn, from 0."""
        return self.counts.get("turn_completed", 0) + self.counts.get("turn_failed", 0)

    def start(self, at: Moment, ref: str, **fields: Any) -> None:
        """trajectory_started."""
        self.began, self.ref = at, ref
        replaces = self.replaces.trajectory_id if self.replaces else None
        fields = {"task_id": self.group.task_id, "replaces": replaces, **fields}
        self.fact("trajectory_started", at, ref, **fields)

    def fact(self, name: str, at: Moment, ref: str, /, **fields: Any) -> None:
        """Any fact of the attempt. Turns, tool calls and sandbox tries are numbered in the order in
        which they are added, unless they say otherwise; a tool call belongs to the last turn."""
        if name in ("turn_completed", "turn_failed"):
            fields.setdefault("turn_no", self.next_turn)
        elif name == "tool_call_completed":
            fields.setdefault("turn_no", max(self.next_turn - 1, 0))
            fields.setdefault("tool_call_no", self.counts.get(name, 0))
        ids = {
            "group_id": self.group.group_id,
            "slot": self.slot,
            "trajectory_id": self.trajectory_id,
        }
        self.drafts.append(self.group.run.draft(name, at, ref, ids | fields))
        self.counts[name] = self.counts.get(name, 0) + 1

    def reward(
        self,
        at: Moment,
        ref: str,
        /,
        *,
        value: float | None,
        components: dict[str, float] | None = None,
        **fields: Any,
    ) -> None:
        """reward_assigned. What is no finite number is no reward, and no part of one; the note
        says so, since no account could compute with it."""
        parts = {"the reward": value, **(components or {})}
        odd = {
            name: each
            for name, each in parts.items()
            if each is not None and not math.isfinite(each)
        }
        for name, each in odd.items():
            place = ref.partition(" sha256:")[0]
            self.group.run.note(f"{place}: {name} must be a finite number, got {each}: left out")
        kept = {name: each for name, each in (components or {}).items() if name not in odd}
        usable = None if "the reward" in odd else value
        self.fact("reward_assigned", at, ref, value=usable, components=kept, **fields)

    def finish(
        self,
        at: Moment,
        ref: str,
        *,
        stop_reason: StopReason,
        turns_known: bool = True,
        **fields: Any,
    ) -> None:
        """trajectory_finished, with the counts of what was added, or null where the foreign files
        don't tell the turns. Comes last."""
        counts = {
            "turns_completed": self.counts.get("turn_completed", 0),
            "turns_failed": self.counts.get("turn_failed", 0),
            "tool_calls": self.counts.get("tool_call_completed", 0),
        }
        told = counts if turns_known else {}
        due = self.counts.get("reward_assigned", 0) > 0
        fields = {"stop_reason": stop_reason, "reward_due": due, **told, **fields}
        self.fact("trajectory_finished", at, ref, **fields)


@cache
def _excerpts(name: str) -> frozenset[str]:
    """Fields of a fact that are excerpts."""
    hints = get_type_hints(wire_types()[name].cls)
    return frozenset(field for field, hint in hints.items() if optional(hint)[0] is Excerpt)


def _fitting(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields whose texts fit into a fact."""
    fitting: dict[str, Any] = {}
    for field, value in fields.items():
        if isinstance(value, str) and field in _excerpts(name):
            value = Excerpt.of(value)
        elif type(value) is str and field != "configuration" and len(value) > MAX_WORD:
            digest = digest_of(value)
            value = f"{value[:MAX_WORD]}... ({len(value)} characters, sha256:{digest})"
        fitting[field] = value
    return fitting
