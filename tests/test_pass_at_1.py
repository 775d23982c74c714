"""Policy quality: who counts, what is missing, and how far it could move the figure.

One book holds the runs of all tests; each test asks about its own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import pytest

from ledger.facts import RewardAssigned, TrajectoryJudged
from ledger.facts.lists import Blame, Outcome, RunKind
from tests.books import rows
from tests.builders import a_fact, an_id
from tests.evaluated import a_book, an_evaluation, attempt_of, run_of

TOLD: list[Any] = []

Ask = Callable[..., list[Any]]


def tell(name: str, slots: dict[str, str], **declared: Any) -> list[Any]:
    facts = an_evaluation(name, slots, **declared)
    TOLD.extend(facts)
    return facts


def again(what: str, facts: list[Any], **fields: Any) -> None:
    """The same facts once more, with other content."""
    TOLD.extend(
        replace(fact, event_id=an_id(what, number), incarnation=an_id(what), producer_seq=number)
        for number, fact in enumerate(replace(fact, **fields) for fact in facts)
    )


def of(facts: list[Any], kind: type) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_book(tmp_path_factory.mktemp("quality"), TOLD)


@pytest.fixture(scope="module")
def ask(book: Path) -> Ask:
    def asked(name: str, columns: str, view: str = "pass_at_1", order: str = "1") -> list[Any]:
        run = f"run_id = '{run_of(name)}'"
        return rows(book, f"SELECT {columns} FROM {view} WHERE {run} ORDER BY {order}")

    return asked


def spread(passes: int, tasks: int = 100, attempts: int = 4) -> dict[str, str]:
    """So many passes, dealt out to the tasks as evenly as they go."""
    return {
        f"task {task:03}": " ".join(
            "p" if attempt * tasks + task < passes else "f" for attempt in range(attempts)
        )
        for task in range(tasks)
    }


for passes in (29, 51, 110):
    tell(f"published {passes}", spread(passes))


@pytest.mark.parametrize(("passes", "share"), [(29, 0.0725), (51, 0.1275), (110, 0.275)])
def test_published_runs_of_400_attempts_read_7_25_and_12_75_and_27_5_percent(
    passes: int, share: float, ask: Ask
) -> None:
    columns = "pass_at_1_macro, pass_at_1_pooled, published, passed, valid, slots, coverage"
    assert ask(f"published {passes}", columns) == [
        (pytest.approx(share), share, share, passes, 400, 400, 1.0)
    ]


tell("order", {"t": "fp ip pf ii"})


def test_a_slot_counts_by_its_first_valid_attempt_never_by_its_best(ask: Ask) -> None:
    columns = "slot, passed, missing_reason, attempts, superseded, excluded"
    assert ask("order", columns, "slot_outcomes") == [
        (0, False, None, 2, 1, 0),
        (1, True, None, 2, 0, 1),
        (2, True, None, 2, 1, 0),
        (3, None, "infrastructure", 2, 0, 2),
    ]
    chosen = ask("order", "slot, trajectory_id::VARCHAR", "slot_outcomes")
    expected = {0: 0, 1: 1, 2: 0}
    assert chosen == [
        *((slot, attempt_of("order", "t", slot, number)) for slot, number in expected.items()),
        (3, None),
    ]
    assert ask("order", "passed, valid, superseded, excluded") == [(2, 3, 2, 3)]


# a: 1 of 2 passes, 2 missing; b: 3 of 3, 1 missing; c: nothing valid.
tell("missing", {"a": "p f i .", "b": "p p p r", "c": "u n P i"})


def test_what_is_missing_is_told_by_its_reason_and_bounds_the_figure(ask: Ask) -> None:
    assert ask("missing", "pass_at_1_macro, pass_at_1_pooled, coverage") == [
        (0.75, 0.8, pytest.approx(5 / 12))
    ]
    columns = "passed, valid, slots, missing, tasks, tasks_valid, tasks_without_valid"
    assert ask("missing", columns) == [(4, 5, 12, 7, 3, 2, ["c"])]
    assert ask("missing", "macro_if_missing_failed, macro_if_missing_passed") == [
        (pytest.approx((1 / 4 + 3 / 4) / 3), pytest.approx((3 / 4 + 1 + 1) / 3))
    ]
    assert ask("missing", "pooled_if_missing_failed, pooled_if_missing_passed, published") == [
        (pytest.approx(4 / 12), pytest.approx(11 / 12), pytest.approx(4 / 12))
    ]
    reasons = {
        "in_flight": 1,
        "infrastructure": 3,
        "never_started": 1,
        "reward_missing": 1,
        "unjudged": 1,
    }
    assert ask("missing", "missing_by_reason, never_opened, excluded, excluded_passes") == [
        (reasons, 0, 4, 1)
    ]


# Task a has two of its three slots, b none; two more tasks have no name.
declared = tell("not submitted", {"a": "p p"}, tasks=4, attempts_per_task=3)
again("b of not submitted", [replace(declared[1], task_id="b")])


def test_tasks_that_were_never_submitted_are_missing_too(ask: Ask) -> None:
    columns = "pass_at_1_macro, valid, slots, never_opened, tasks, unnamed_tasks"
    assert ask("not submitted", columns) == [(1.0, 2, 12, 10, 4, 2)]
    columns = "tasks_without_valid, macro_if_missing_failed, macro_if_missing_passed, published"
    assert ask("not submitted", columns) == [
        (["b"], pytest.approx(2 / 12), 1.0, pytest.approx(2 / 12))
    ]


tell("unequal", {"a": "p", "b": "f f f"}, attempts_per_task=None)


def test_attempts_of_unequal_number_are_macro_and_pooled_apart(ask: Ask) -> None:
    columns = "pass_at_1_macro, pass_at_1_pooled, slots, coverage"
    assert ask("unequal", columns) == [(0.5, 0.25, 4, 1.0)]


tell("no task", {}, tasks=10, attempts_per_task=4)
tell("no judgement", {"a": "u u", "b": "r ."})


def test_an_evaluation_without_a_task_or_without_a_judgement_has_a_row(ask: Ask) -> None:
    columns = "rule_set, pass_at_1_macro, published, valid, slots, coverage"
    assert ask("no task", columns) == [(None, None, 0.0, 0, 40, 0.0)]
    assert ask("no judgement", columns) == [(None, None, 0.0, 0, 4, 0.0)]


tell("training", {"a": "p f"}, kind=RunKind.TRAIN)


def test_training_runs_have_no_pass_at_1(ask: Ask) -> None:
    for view in ("slot_outcomes", "task_outcomes", "pass_at_1", "pass_at_k"):
        assert ask("training", "*", view) == []


by_one = tell("rule sets", {"a": "p i"})
again("rule set 2", of(by_one, TrajectoryJudged), rule_set=2, trainable=True, blame=None)
# The second rule set blames the policy, and its verifier scored the attempt.
scored = of(by_one, RewardAssigned)[0]
lost = attempt_of("rule sets", "a", 1)
again("its score", [replace(scored, slot=1, trajectory_id=lost, value=0.0)])


def test_each_rule_set_has_its_own_row(ask: Ask) -> None:
    assert ask("rule sets", "rule_set, pass_at_1_macro, coverage") == [(1, 1.0, 0.5), (2, 0.5, 1.0)]


last = tell("taken back", {"a": "p"})[-1]
again("taking back", [last], trainable=False, outcome=Outcome.ERRORED, blame=Blame.SCHEDULER)


def test_a_later_judgement_by_the_same_rule_set_takes_the_first_one_back(ask: Ask) -> None:
    assert ask("taken back", "valid, missing_by_reason") == [(0, {"scheduler": 1})]


first_scores = of(tell("re-scored", {"a": "p f"}), RewardAssigned)
again("down", first_scores[:1], verifier_version="2", value=0.0)
again("no verdict", first_scores[1:], verifier_version="2", value=None)


def test_a_re_score_counts_by_its_newest_verifier_version(ask: Ask) -> None:
    assert ask("re-scored", "passed, valid, missing_by_reason, verifiers") == [
        (0, 1, {"reward_missing": 1}, ["pytest 2"])
    ]


REWARDS = {0.5: True, 0.49: False, -1.0: False, float("nan"): None, float("inf"): None}
passing = " ".join("p" * len(REWARDS))
for score, reward in zip(of(tell("rewards", {"a": passing}), RewardAssigned), REWARDS, strict=True):
    again(f"reward {reward}", [score], value=reward)


def test_a_reward_passes_from_the_threshold_on_and_must_be_a_number(ask: Ask) -> None:
    found = ask("rewards", "slot, passed", "slot_outcomes")
    assert found == list(enumerate(REWARDS.values()))


STRATA = {"a": ("easy", 3.0), "b": ("easy", 3.0), "c": ("hard", 1.0)}
tell("weighted", {"a": "p p", "b": "f f", "c": "p p"}, strata=STRATA)
tell("one stratum empty", {"a": "p p", "b": "f f", "c": "i i"}, strata=STRATA)
UNWEIGHTED = {"a": ("easy", 3.0), "b": ("easy", None), "c": ("hard", 1.0)}
tell("one without weight", {"a": "p p", "b": "f f", "c": "p p"}, strata=UNWEIGHTED)
AT_ODDS = {"a": ("easy", 3.0), "b": ("easy", 2.0), "c": ("hard", 1.0)}
tell("two weights", {"a": "p p", "b": "f f", "c": "p p"}, strata=AT_ODDS)


def test_strata_weigh_as_declared_and_an_empty_one_leaves_no_weighted_value(ask: Ask) -> None:
    columns = "pass_at_1_macro, pass_at_1_weighted, strata, strata_without_valid"
    two_thirds = pytest.approx(2 / 3)
    assert ask("weighted", columns) == [(two_thirds, pytest.approx((3 * 0.5 + 1) / 4), 2, [])]
    assert ask("one stratum empty", columns) == [(0.5, None, 2, ["hard"])]
    assert ask("one without weight", columns) == [(two_thirds, None, 2, [])]
    assert ask("two weights", columns) == [(two_thirds, None, 2, [])]


tell("declared version", {"a": "p"}, submitted=7, parent_policy_version=5)
tell("two versions", {"a": "p", "b": "f"}, submitted=3)
TOLD.extend(
    replace(fact, run_id=run_of("two versions"))
    for fact in an_evaluation("more of it", {"a": "f"}, submitted=4)[1:]
)


def test_a_run_has_a_row_for_the_version_it_declares_or_for_each_it_was_submitted_at(
    ask: Ask,
) -> None:
    columns = "policy_version, submitted_versions, passed, valid, slots, tasks_without_valid"
    assert ask("declared version", columns) == [(5, [7], 1, 1, 1, [])]
    assert ask("two versions", columns) == [(3, [3], 1, 2, 2, []), (4, [4], 0, 1, 2, ["b"])]


tell("few", {"a": "p p f f", "b": "f f f i", "c": "i p i i"})


def test_pass_at_k_is_unbiased_and_leaves_out_tasks_with_too_few_valid_attempts(
    ask: Ask,
) -> None:
    columns = "k, pass_at_k, pass_hat_k, published, tasks_counted, tasks_left_out"
    near = pytest.approx
    assert ask("few", columns, "pass_at_k") == [
        (1, near((1/2 + 0 + 1) / 3), near((1/2 + 0 + 1) / 3), near((1/2 + 0 + 1/4) / 3), 3, []),
        (2, near((5/6 + 0) / 2), near((1/6 + 0) / 2), near((5/6 + 0 + 1/2) / 3), 2, ["c"]),
        (3, near((1 + 0) / 2), 0.0, near((1 + 0 + 3/4) / 3), 2, ["c"]),
        (4, 1.0, 0.0, near((1 + 0 + 1) / 3), 1, ["b", "c"]),
    ]  # fmt: skip


tell("many", {"a": " ".join("pf" * 35)})


def test_pass_at_k_has_every_k_up_to_16_and_then_powers_of_two_and_the_most(ask: Ask) -> None:
    found = [k for (k,) in ask("many", "k", "pass_at_k")]
    assert found == [*range(1, 17), 32, 64, 70]


CHANCE = random.Random(11)
ANY = [
    [
        [CHANCE.choice("pfi") for _ in range(CHANCE.randint(1, 9))]
        for _ in range(CHANCE.randint(1, 4))
    ]
    for _ in range(40)
]
for number, tasks in enumerate(ANY):
    slots = {f"t{task}": " ".join(words) for task, words in enumerate(tasks)}
    tell(f"any {number}", slots, attempts_per_task=None)


def test_any_evaluation_agrees_with_the_formulas(book: Path) -> None:
    of_k: defaultdict[str, list[Any]] = defaultdict(list)
    for name, *figures in rows(
        book, "SELECT name, k, pass_at_k, pass_hat_k FROM pass_at_k JOIN evaluations"
              " USING (run_id) WHERE name LIKE 'any %'"
    ):  # fmt: skip
        of_k[name].append(figures)
    bounds = {
        name: figures
        for name, *figures in rows(
            book, "SELECT name, macro_if_missing_failed, pass_at_1_macro, macro_if_missing_passed"
                  " FROM pass_at_1 WHERE name LIKE 'any %'"
        )
    }  # fmt: skip
    for number, tasks in enumerate(ANY):
        counts = [(words.count("p") + words.count("f"), words.count("p")) for words in tasks]
        assert len(of_k[f"any {number}"]) == max(map(len, tasks))
        for k, *found in of_k[f"any {number}"]:
            due = [(n, c) for n, c in counts if n >= k]
            of_any = [1 - comb(n - c, k) / comb(n, k) for n, c in due]
            of_all = [comb(c, k) / comb(n, k) for n, c in due]
            assert found == [mean(of_any), mean(of_all)]
        sized = [(len(words), n, c) for words, (n, c) in zip(tasks, counts, strict=True)]
        assert bounds[f"any {number}"] == [
            mean([c / slots for slots, _, c in sized]),
            mean([c / n for n, c in counts if n]),
            mean([(slots - n + c) / slots for slots, n, c in sized]),
        ]


def mean(values: list[float]) -> Any:
    return pytest.approx(sum(values) / len(values), abs=1e-12) if values else None


EDGE = 2**63 - 1
tell("absurd", {"a": "p f"}, tasks=EDGE, attempts_per_task=EDGE, turn_cap=EDGE)
TOLD.append(
    a_fact("group_opened", only_required=True, run_id=run_of("absurd"), group_id=an_id("huge"),
           task_id="a", expected_size=EDGE)
)  # fmt: skip


def test_absurd_declarations_break_no_view(book: Path, ask: Ask) -> None:
    assert ask("absurd", "pass_at_1_pooled, tasks, unnamed_tasks") == [(0.5, EDGE, EDGE - 1)]
    assert ask("absurd", "max(k)", "pass_at_k") == [(10_000,)]
