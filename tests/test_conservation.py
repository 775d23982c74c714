"""Each fact that unbalances the books is told by the identity that it breaks.

One log holds everything: a run that is right, and behind it what would be wrong. A case sees the
first, with some facts of the second, and without some of the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from consumers.assembling.settings import AssemblerSettings
from consumers.audit import audit
from ledger.facts import (
    BatchAssembled,
    BatchRefused,
    Fact,
    GroupDecided,
    GroupOpened,
    Member,
    RewardAssigned,
    StepCompleted,
    ToolCallCompleted,
    TrajectoryFinished,
    TrajectoryJudged,
    TrajectoryStarted,
)
from ledger.facts.lists import Blame, DropReason, GroupDecision, Outcome, RunKind
from tests.accounts import TRAINER, Accounts, attempt, facts_of
from tests.assembled import RUN, Desk, Teller, a_group, group_id, opened, the_run, trajectory_id
from tests.builders import an_id

EVALUATION, OPENER = an_id("run", 2), an_id("opener")
G0, G1 = group_id(0), group_id(1)
UNKNOWN = an_id("nobody knows it")
Row = tuple[Any, ...]


def right() -> list[Fact]:
    """A run of two groups, one trained on and one refused, and an evaluation of two tasks."""
    desk = Desk(
        AssemblerSettings.of(
            {"groups_per_batch": 1, "on_infra_failure": "refill", "evidence_wait_s": 0}, "here"
        )
    ).read(*the_run(), *a_group(0, [1, 0, 0]))
    desk.decide()
    tell = Teller(seed=1)
    desk.read(opened(tell, 1, 2, target_step=2), *attempt(tell, 1, 0, "passes"))
    desk.read(*attempt(tell, 1, 1, "lost"))
    desk.decide()
    desk.read(*attempt(tell, 1, 1, "fails", refill=1))
    desk.decide()
    batches = [fact for fact in desk.appended if isinstance(fact, BatchAssembled)]
    tell = Teller(TRAINER, seed=50)
    desk.read(
        tell("step_completed", step=1, batch_id=batches[0].batch_id),
        tell("batch_refused", step=2, batch_id=batches[1].batch_id, reason="stale"),
    )
    tell = Teller(OPENER, seed=60)
    of_run: dict[str, Any] = {"run_id": EVALUATION}
    desk.read(tell("run_declared", **of_run, kind=RunKind.EVAL, tasks=2, attempts_per_task=2))
    desk.read(*(opened(tell, 70 + n, 2, **of_run, task_id=f"task {n}") for n in range(2)))
    desk.read(tell("producer_closed", **of_run, accepted=3, last_seq=2))
    return facts_of(desk)


_new = itertools.count()


def new_id() -> str:
    return an_id("another fact", next(_new))


@dataclass
class Case:
    """What is taken from the log that is right, and what is added."""

    without: list[Fact] = field(default_factory=list[Fact])
    also: list[Fact] = field(default_factory=list[Fact])

    def change(self, fact: Fact, **fields: Any) -> Case:
        """The fact says something else."""
        other = replace(fact, **({"event_id": new_id()} | fields))
        return Case([*self.without, fact], [*self.also, other])


def one(facts: Sequence[Fact], kind: type, **match: Any) -> Any:
    """The only fact of a kind that matches."""
    (found,) = [
        fact
        for fact in facts
        if type(fact) is kind and all(getattr(fact, key) == match[key] for key in match)
    ]
    return found


def decision(facts: Sequence[Fact], group: str) -> Any:
    return one(facts, GroupDecided, group_id=group)


def lost(facts: Sequence[Fact], kind: type, **match: Any) -> Case:
    return Case([one(facts, kind, **match)])


def added(name: str, **fields: Any) -> Case:
    own: dict[str, Any] = {"event_id": new_id(), "producer_seq": 0}
    return Case(also=[Teller(an_id("stranger"))(name, **own, **fields)])


def again(facts: Sequence[Fact], kind: type, match: dict[str, Any], **fields: Any) -> Case:
    """A fact a second time, with another content, by somebody else."""
    own: dict[str, Any] = {
        "event_id": new_id(),
        "incarnation": an_id("stranger"),
        "producer_seq": 0,
    }
    return Case(also=[replace(one(facts, kind, **match), **own, **fields)])


def member(facts: Sequence[Fact], group: str, slot: int, **fields: Any) -> Case:
    """What the decision says of the last attempt in a slot is something else."""
    fact = decision(facts, group)
    at = max(n for n, each in enumerate(fact.members) if each.slot == slot)
    members = [replace(m, **fields) if n == at else m for n, m in enumerate(fact.members)]
    return Case().change(fact, members=members)


def without_member(facts: Sequence[Fact], group: str, slot: int) -> Case:
    fact = decision(facts, group)
    return Case().change(fact, members=[each for each in fact.members if each.slot != slot])


def twice_in_slot(facts: Sequence[Fact]) -> Case:
    fact = decision(facts, G0)
    return Case().change(fact, members=[fact.members[0], *fact.members])


def of_another_group(facts: Sequence[Fact]) -> Case:
    """A member of group 0 votes in group 1 too."""
    theirs: Member = decision(facts, G0).members[1]
    fact = decision(facts, G1)
    return Case().change(fact, members=[*fact.members[:-1], replace(theirs, slot=1)])


def no_number(facts: Sequence[Fact]) -> Case:
    nan, given = float("nan"), new_id()
    case = member(facts, G0, 1, reward=nan, reward_event_id=given)
    return case.change(one(facts, RewardAssigned, trajectory_id=T01), value=nan, event_id=given)


def judged(facts: Sequence[Fact], **fields: Any) -> Case:
    fact = one(facts, TrajectoryJudged, trajectory_id=T01)
    return Case().change(fact, **fields)


def of_another_run(trajectory: str, slot: int) -> Fact:
    (fact,) = added(
        "trajectory_started", run_id=an_id("run", 3), group_id=group_id(8),
        trajectory_id=trajectory, slot=slot, task_id="t",
    ).also  # fmt: skip
    return fact


def rewarded_by_another_run(facts: Sequence[Fact]) -> Case:
    reward = replace(
        one(facts, RewardAssigned, trajectory_id=T01), run_id=an_id("run", 3), event_id=new_id()
    )
    case = member(facts, G0, 1, reward_event_id=reward.event_id)
    return replace(case, also=[*case.also, reward])


def a_batch(facts: Sequence[Fact], step: int) -> BatchAssembled:
    return one(facts, BatchAssembled, step=step)


def hole(facts: Sequence[Fact], case: Case) -> Row:
    """What the loss of the case's fact breaks beside all else."""
    number = case.without[0].producer_seq
    return ("no_hole", None, None, None, f"{number} to {number}", "none")


T00, T01, T02 = (trajectory_id(0, slot) for slot in range(3))
T10, T11, T11_REFILL = trajectory_id(1, 0), trajectory_id(1, 1), trajectory_id(1, 1, 1)

CASES: dict[str, tuple[Callable[[Sequence[Fact]], Case], list[Row]]] = {
    "a group with less than no slots": (
        lambda _: added("group_opened", group_id=group_id(5), task_id="t", expected_size=-1),
        [
            ("slots", None, group_id(5), None, "-1", "0"),
            ("slots", None, None, None, "-1", "0"),
            ("slots", None, None, None, "4", "5"),
        ],
    ),
    "a group opened with two sizes": (
        lambda facts: again(facts, GroupOpened, {"group_id": G0}, expected_size=4),
        [("opened_once", None, G0, None, "3", "3, 4")],
    ),
    "a group opened twice with one size": (
        lambda facts: again(facts, GroupOpened, {"group_id": G0}),
        [],
    ),
    "an attempt of a group that nobody opened": (
        lambda _: added(
            "trajectory_started", group_id=group_id(6), trajectory_id=UNKNOWN, slot=0, task_id="t"
        ),
        [("group_known", None, group_id(6), UNKNOWN, "group_opened", "1 attempts")],
    ),
    "a decided group that nobody opened": (
        lambda facts: lost(facts, GroupOpened, group_id=G0),
        [("group_known", None, G0, None, "group_opened", "3 attempts")],
    ),
    "an attempt in a slot that the group doesn't have": (
        lambda _: added(
            "trajectory_started", group_id=G0, trajectory_id=UNKNOWN, slot=7, task_id="t"
        ),
        [("slot_in_group", None, G0, UNKNOWN, "slot 0 to 2", "slot 7")],
    ),
    "an attempt in two slots": (
        lambda facts: again(facts, TrajectoryFinished, {"trajectory_id": T00}, slot=1),
        [("one_slot_per_trajectory", None, G0, T00, "one slot", f"slot 0 of {G0}, slot 1 of {G0}")],
    ),
    "a refill of another slot's attempt": (
        lambda facts: Case().change(
            one(facts, TrajectoryStarted, trajectory_id=T11_REFILL), replaces=T10
        ),
        [("refill_in_slot", None, G1, T11_REFILL, "an attempt in slot 1", f"slot 0 of {G1}")],
    ),
    "a refill of an attempt that nobody knows": (
        lambda facts: Case().change(
            one(facts, TrajectoryStarted, trajectory_id=T11_REFILL), replaces=UNKNOWN
        ),
        [("refill_in_slot", None, G1, T11_REFILL, "an attempt in slot 1", "none")],
    ),
    "a refill of another run's attempt": (
        lambda facts: Case(also=[of_another_run(UNKNOWN, slot=1)]).change(
            one(facts, TrajectoryStarted, trajectory_id=T11_REFILL), replaces=UNKNOWN
        ),
        [
            ("group_known", None, group_id(8), UNKNOWN, "group_opened", "1 attempts"),
            ("refill_in_slot", None, G1, T11_REFILL, "an attempt in slot 1", "none"),
        ],
    ),
    "an attempt of two runs": (
        lambda _: Case(also=[of_another_run(T00, slot=0)]),
        [
            ("group_known", None, group_id(8), T00, "group_opened", "1 attempts"),
            ("one_slot_per_trajectory", None, min(G0, group_id(8)), T00, "one slot",
             ", ".join(sorted(f"slot 0 of {group}" for group in (G0, group_id(8))))),
        ],
    ),
    "a group decided twice": (
        lambda facts: again(facts, GroupDecided, {"group_id": G0}, mean=0.25),
        [
            ("decided_once", None, G0, None, "one decision, or batch and then dropped",
             "2 decisions: batch and last batch"),
        ],
    ),
    "a group dropped out of its batch": (
        lambda facts: again(
            facts, GroupDecided, {"group_id": G0},
            decision=GroupDecision.DROPPED, drop_reason=DropReason.STALE,
        ),
        [("batch_groups_decided", 1, G0, None, "batch", "dropped: stale")],
    ),
    "an attempt that its group's decision leaves out": (
        lambda facts: without_member(facts, G0, 2),
        [("attempt_listed", None, G0, T02, "member", "none")],
    ),
    "two votes for a slot": (
        twice_in_slot,
        [("one_vote_per_slot", None, G0, None, "1", "2")],
    ),
    "an advantage for a member that is excluded": (
        lambda facts: member(facts, G0, 1, votes=False, exclusion_reason="unknown", advantage=0.5),
        [
            ("excluded_without_vote", None, G0, T01, "exclusion, no advantage",
             "votes: false, exclusion: unknown, masked: false, advantage: 0.5"),
        ],
    ),
    "a member that votes though it is excluded": (
        lambda facts: member(facts, G0, 1, exclusion_reason="infrastructure", advantage=None),
        [
            ("excluded_without_vote", None, G0, T01, "no exclusion",
             "votes: true, exclusion: infrastructure, masked: false, advantage: none"),
        ],
    ),
    "a vote of an attempt that never ended": (
        lambda facts: lost(facts, TrajectoryFinished, trajectory_id=T01),
        [("voter_ended", None, G0, T01, "trajectory_finished", "none")],
    ),
    "a vote that nobody judged": (
        lambda facts: lost(facts, TrajectoryJudged, trajectory_id=T01),
        [("voter_valid", None, G0, T01, "trainable", "not judged")],
    ),
    "a vote of a failure of the infrastructure": (
        lambda facts: judged(facts, trainable=False, blame=Blame.INFRASTRUCTURE),
        [("voter_valid", None, G0, T01, "trainable", "not trainable, blamed on infrastructure")],
    ),
    "a failure of the infrastructure that passes for trainable": (
        lambda facts: judged(facts, trainable=True, blame=Blame.INFRASTRUCTURE),
        [("voter_valid", None, G0, T01, "trainable", "blamed on infrastructure")],
    ),
    "another rule set that doesn't find a vote valid": (
        lambda facts: again(
            facts, TrajectoryJudged, {"trajectory_id": T01},
            rule_set=2, trainable=False, blame=Blame.INFRASTRUCTURE,
        ),
        [],
    ),
    "evidence that comes after the decision": (
        lambda facts: again(
            facts, TrajectoryJudged, {"trajectory_id": T01},
            trainable=False, blame=Blame.INFRASTRUCTURE, outcome=Outcome.ERRORED,
        ),
        [],
    ),
    "a vote whose reward fact nobody has": (
        lambda facts: lost(facts, RewardAssigned, trajectory_id=T01),
        [("voted_reward", None, G0, T01, "0.0", "no reward fact")],
    ),
    "a vote with a reward of another run": (
        rewarded_by_another_run,
        [("voted_reward", None, G0, T01, "0.0", "no reward fact")],
    ),
    "a zero that no verifier gave": (
        lambda facts: member(facts, G0, 1, reward_event_id=None, reward=0.0),
        [("voted_reward", None, G0, T01, "0.0", "no reward fact")],
    ),
    "a vote with another reward than the verifier's": (
        lambda facts: member(facts, G0, 1, reward=1.0),
        [("voted_reward", None, G0, T01, "1.0", "0.0")],
    ),
    "a vote with a reward that is no number": (
        no_number,
        [("voted_reward", None, G0, T01, "nan", "nan")],
    ),
    "tokens for training that were not verified": (
        lambda facts: member(facts, G0, 1, tokens_verified=False),
        [("tokens_verified", None, G0, T01, "verified", "not verified")],
    ),
    "a masked member's tokens that were not verified": (
        lambda facts: member(facts, G0, 1, tokens_verified=False, masked=True),
        [],
    ),
    "a batch of a group that was never decided": (
        lambda facts: lost(facts, GroupDecided, group_id=G0),
        [("batch_groups_decided", 1, G0, None, "batch", "no decision")],
    ),
    "a group in two batches": (
        lambda facts: again(facts, BatchAssembled, {"step": 1}, batch_id=an_id("b"), step=3),
        [("group_in_one_batch", 1, G0, None, "1", "2")],
    ),
    "an attempt in two batches": (
        of_another_group,
        [
            ("attempt_listed", None, G1, T11_REFILL, "member", "none"),
            ("trajectory_in_one_batch", 1, min(G0, G1), T01, "1", "2"),
            ("voter_ended", None, G1, T01, "trajectory_finished", "none"),
            ("voter_valid", None, G1, T01, "trainable", "not judged"),
        ],
    ),
    "a step on a batch that nobody assembled": (
        lambda _: added("step_completed", step=9, batch_id=UNKNOWN),
        [("step_batch", 9, None, None, f"batch {UNKNOWN}", "none")],
    ),
    "a step on no batch, in a run that has batches": (
        lambda _: added("step_completed", step=9, batch_id=None),
        [("step_batch", 9, None, None, "a batch", "none")],
    ),
    "a step on no batch, in a run that was read from elsewhere": (
        lambda _: added("step_completed", run_id=an_id("run", 3), step=9, batch_id=None),
        [],
    ),
    "a refusal of a batch that nobody assembled": (
        lambda _: added("batch_refused", step=9, batch_id=UNKNOWN, reason="nan"),
        [("refused_batch", 9, None, None, f"batch {UNKNOWN}", "none")],
    ),
    "a batch trained on after it was refused": (
        lambda facts: again(
            facts, StepCompleted, {"step": 1}, step=2, batch_id=a_batch(facts, 2).batch_id
        ),
        [("refused_untrained", 2, None, None, "refused", "trained")],
    ),
    "a batch that its trainer refused after training on it": (
        lambda facts: Case().change(
            one(facts, BatchRefused), batch_id=a_batch(facts, 1).batch_id, step=1
        ),
        [("refused_untrained", 1, None, None, "refused", "trained")],
    ),
    "a batch that a trainer that resumed refused": (
        lambda facts: again(
            facts, BatchRefused, {}, batch_id=a_batch(facts, 1).batch_id, step=1
        ),
        [],
    ),
    "an evaluation with more slots than it declared": (
        lambda _: added(
            "group_opened", run_id=EVALUATION, group_id=group_id(7), task_id="t", expected_size=2
        ),
        [("evaluation_slots", None, None, None, "4", "6")],
    ),
    "an evaluation that ended with fewer": (
        lambda facts: lost(facts, GroupOpened, group_id=group_id(71)),
        [("evaluation_slots", None, None, None, "4", "2")],
    ),
    "a task of an evaluation with another's slots": (
        lambda facts: Case().change(
            one(facts, GroupOpened, group_id=group_id(71)), task_id="task 0"
        ),
        [("task_slots", None, None, None, "2", "4")],
    ),
    "a fact that nobody has": (
        lambda facts: lost(facts, ToolCallCompleted, trajectory_id=T01, turn_no=1),
        [],
    ),
}  # fmt: skip
"""Name -> how the log is broken, and the rows that say so. A lost fact leaves a hole, too."""


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Accounts]]:
    """The book of a case, by its name."""
    facts = right()
    cases = {name: broken(facts) for name, (broken, _) in CASES.items()}
    log: list[Fact] = []
    places: dict[int, int] = {}

    def write(fact: Fact) -> None:
        places[id(fact)] = len(log)
        log.append(fact)

    # A judgement counts by its place: what was judged otherwise was so before the decision.
    changed = [(case.without[0], each) for case in cases.values() for each in case.also
               if case.without and isinstance(each, TrajectoryJudged)]  # fmt: skip
    for fact in facts:
        places[id(fact)] = len(log)
        log.append(fact)
        for other in [each for original, each in changed if original is fact]:
            write(other)
    end = len(log)
    for case in cases.values():
        for fact in case.also:
            if id(fact) not in places:
                write(fact)
    in_place = [places[id(each)] for _, each in changed]
    with Accounts(log, tmp_path_factory.mktemp("accounts")) as book:

        def seen(name: str) -> Accounts:
            case = cases[name]
            also = [places[id(fact)] for fact in case.also]
            without = [places[id(fact)] for fact in case.without]
            hidden = [place for place in in_place if place not in also]
            return book.as_of(end, also=also, without=[*without, *hidden])

        cases["nothing"] = Case()
        yield seen


def test_a_run_that_went_right_breaks_nothing(books: Callable[[str], Accounts]) -> None:
    book = books("nothing")
    assert book.broken() == []
    assert book.dispositions() == {
        G0: ["trained", "trained", "trained"],
        G1: ["dropped", "dropped"],
        group_id(70): ["never_started", "never_started"],
        group_id(71): ["never_started", "never_started"],
    }


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_told_by_the_identity_that_it_breaks(
    name: str, books: Callable[[str], Accounts]
) -> None:
    facts = right()
    breaks, rows = CASES[name]
    case = breaks(facts)
    due = [*rows, hole(facts, case)] if case.without and not case.also else rows
    assert books(name).broken() == sorted(due, key=str)


def test_the_audit_tells_of_a_broken_identity_with_its_place(
    books: Callable[[str], Accounts],
) -> None:
    found = audit(books("a zero that no verifier gave").connection)
    assert [(each.check, each.wrong) for each in found if each.wrong] == [("conservation", True)]
    assert found[0].detail == (
        "voted_reward: this member votes with reward 0.0 for slot 1, and the verifier gave it none"
        f" such (run {RUN}, group {G0}, attempt {T01}): expected 0.0, found no reward fact"
    )


def test_the_audit_tells_of_a_hole_once(books: Callable[[str], Accounts]) -> None:
    found = audit(books("a fact that nobody has").connection)
    assert [each.check for each in found if each.wrong] == ["sequence_holes"]
