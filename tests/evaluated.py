"""Evaluation runs, written down by the outcomes of their slots.

an_evaluation("before", {"fix-1": "p f ip .", "fix-2": "f"})     facts of a run of two tasks

A slot is a word, its attempts in order a letter each:

p  passes          i  excluded: infrastructure     n  the verifier gave no reward
f  fails           P  excluded, but had a reward of 1
r  is running      u  ended and unjudged            .  never started
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from ledger.facts import Fact
from ledger.facts.lists import Blame, Outcome, RunKind, Stage, StopReason
from ledger.open_log import open_log
from tests.books import append, numbered, projected
from tests.builders import AT, a_fact, an_id

REWARDS = {"p": 1.0, "f": 0.0, "P": 1.0, "u": 1.0, "n": None}


def run_of(name: str) -> str:
    """The run's id."""
    return an_id(f"evaluation {name}")


def attempt_of(name: str, task: str, slot: int, attempt: int = 0) -> str:
    """The trajectory's id."""
    return an_id(f"attempt {name}/{task}/{slot}", attempt)


@cache
def _template(name: str) -> Any:
    return a_fact(name, only_required=True)


def _fact(name: str, /, **fields: Any) -> Any:
    return replace(_template(name), **fields)


def an_evaluation(
    name: str,
    slots: Mapping[str, str],
    *,
    rule_set: int = 1,
    strata: Mapping[str, tuple[str, float | None]] | None = None,
    submitted: int | None = None,
    **declared: Any,
) -> list[Any]:
    """Facts in the order of their log. `strata` has a stratum and its weight by task; the declared
    number of tasks and attempts are those of `slots`, unless given."""
    most = max((len(words.split()) for words in slots.values()), default=0)
    usual = {"kind": RunKind.EVAL, "pass_threshold": 0.5, "name": name}
    counts = {"tasks": len(slots), "attempts_per_task": most}
    facts: list[Any] = [_fact("run_declared", **(usual | counts | declared))]
    for task, words in slots.items():
        stratum, weight = (strata or {}).get(task, (None, None))
        facts.append(_fact("task_declared", task_id=task, stratum=stratum, stratum_weight=weight))
        facts += _group(name, task, words.split(), rule_set, submitted)
    told = (
        replace(fact, run_id=run_of(name), event_id=an_id(f"fact of {name}", number))
        for number, fact in enumerate(facts)
    )
    return numbered(told, an_id(f"incarnation {name}"))


def _group(
    name: str, task: str, words: list[str], rule_set: int, submitted: int | None
) -> Iterator[Fact]:
    group_id = an_id(f"group of {name}/{task}")
    yield _fact(
        "group_opened",
        group_id=group_id,
        task_id=task,
        expected_size=len(words),
        policy_version=submitted,
    )
    for slot, letters in enumerate(words):
        for number, letter in enumerate(letters.replace(".", "")):
            ids = {
                "group_id": group_id,
                "slot": slot,
                "trajectory_id": attempt_of(name, task, slot, number),
                "occurred_at": AT + timedelta(seconds=60 * number + slot),
            }
            yield from _attempt(ids, task, letter, rule_set)


def _attempt(ids: dict[str, Any], task: str, letter: str, rule_set: int) -> Iterator[Fact]:
    yield _fact("trajectory_started", **ids, task_id=task)
    if letter == "r":
        return
    ended = ids | {"occurred_at": ids["occurred_at"] + timedelta(seconds=30)}
    if letter in REWARDS:
        scored = {"value": REWARDS[letter], "verifier": "pytest", "verifier_version": "1"}
        yield _fact("reward_assigned", **ended, **scored)
    yield _fact("trajectory_finished", **ended, stop_reason=StopReason.SUBMITTED)
    if letter != "u":
        blame = Blame.INFRASTRUCTURE if letter in "iP" else None
        yield _fact(
            "trajectory_judged",
            **ended,
            rule_set=rule_set,
            outcome=Outcome.ERRORED if blame else Outcome.COMPLETED,
            trainable=letter in "pf",
            blame=blame,
            cause_stage=Stage.TOOL if blame else None,
            cause_class="sandbox_lost" if blame else None,
        )


def a_book(folder: Path, facts: Iterable[Fact]) -> Path:
    """A book of these facts."""
    url, facts = f"sqlite:///{folder / 'log.db'}", list(facts)
    with open_log(url) as log:
        append(log, facts)
    inserted = projected(url, folder / "book")
    assert (inserted.facts, inserted.quarantined) == (len(facts), 0)
    return folder / "book"
