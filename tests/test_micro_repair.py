"""micro_repair: the tokens, the split, the real repository beside the pure transitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NoReturn

import pytest

from producers.sandbox import Sandbox
from producers.sandbox_pool import Sandboxes
from producers.sandboxes.settings import SandboxSettings
from producers.tasks.micro_repair.bugs import Bug, all_bugs, draw_bugs
from producers.tasks.micro_repair.repository import files_of
from producers.tasks.micro_repair.task import CAPS, MicroRepair, micro_repair
from producers.tasks.micro_repair.transitions import (
    careful_repair,
    random_pass_rate,
    repair,
    start,
    step,
    trace,
)
from producers.tasks.micro_repair.vocabulary import (
    FUNCTION_TOKENS,
    LINE_TOKENS,
    OPERATOR_TOKENS,
    SUBMIT,
    TEST,
    VOCABULARY,
    word,
)
from producers.tasks.task import Nothing, Submit, TasksRefused, ToolCall, Verdict
from producers.tasks.validation import UNRECORDED
from tests.task_sandboxes import local_sandboxes, verdict_on, with_sandboxes, write_template

LESS_IS_GREATER = Bug(functions=(0, 3, 2, 5), line=1, wrong=4)
"""add, less, multiply, equal; less has `>`."""
PLUS, MINUS, _, LESS, GREATER, EQUAL = OPERATOR_TOKENS
L1, L2, L3, L4 = LINE_TOKENS


def words(tokens: Sequence[int]) -> str:
    return " ".join(map(word, tokens))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxSettings]:
    """A real server of sandboxes."""
    folder = tmp_path_factory.mktemp("micro_repair")
    write_template(folder / "templates")
    with local_sandboxes(folder / "server", folder / "templates") as settings:
        yield settings


async def attempt(
    sandbox: Sandbox, bug: Bug, actions: Sequence[int], trace_lines: int = 0
) -> tuple[list[int], Verdict]:
    """The tokens of an attempt in a real repository, as far as it gets, and its verdict."""
    task = MicroRepair.of(bug, trace_lines)
    await task.setup(sandbox)
    scaffold = task.scaffold()
    tokens = scaffold.prompt()
    seen: tuple[int, ...] = ()
    for token in actions[: CAPS.turns]:
        tokens += [*seen, token]
        action = scaffold.read([token])
        result = None
        if isinstance(action, ToolCall):
            result = await sandbox.run(action.command, timeout_s=action.timeout_s)
        observation = scaffold.observe(action, result)
        seen = observation.token_ids
        if observation.done:
            break
    return tokens, await task.verify(sandbox, no_other_sandbox)


def no_other_sandbox(template: str | None) -> NoReturn:
    raise AssertionError("micro_repair is verified where it was repaired")


def attempts(
    settings: SandboxSettings, cases: Sequence[tuple[Bug, Sequence[int]]]
) -> list[tuple[list[int], Verdict]]:
    """Attempts, one after another in one sandbox: setup writes every file anew."""

    async def run(sandboxes: Sandboxes) -> list[tuple[list[int], Verdict]]:
        async with sandboxes.open(UNRECORDED) as sandbox:
            return [await attempt(sandbox, bug, actions) for bug, actions in cases]

    return with_sandboxes(settings, run)


def test_the_repository_is_one_that_a_person_could_repair() -> None:
    files = files_of(LESS_IS_GREATER)
    assert files["functions.py"] == (
        "def add(a, b): return a + b\n"
        "def less(a, b): return a > b\n"
        "def multiply(a, b): return a * b\n"
        "def equal(a, b): return a == b\n"
    )
    assert "- `less`: whether the first is the smaller one\n" in files["README.md"]


def test_the_prompt_is_the_failing_line() -> None:
    task = MicroRepair.of(LESS_IS_GREATER)
    assert words(task.scaffold().prompt()) == "BOS FAIL L2 less >"
    assert task.statement == (
        "The tests of less fail. Line 2 of functions.py is `def less(a, b): return a > b`."
        " Make all tests pass."
    )


CASES = (
    ([LESS], "BOS FAIL L2 less > <", 1.0),
    ([SUBMIT], "BOS FAIL L2 less > SUBMIT", 0.0),
    ([EQUAL, LESS], "BOS FAIL L2 less > == FAIL less == <", 1.0),
    ([PLUS, LESS], "BOS FAIL L2 less > + ERR less > <", 1.0),
    ([TEST, LESS], "BOS FAIL L2 less > TEST FAIL less > <", 1.0),
    ([0, 31, LESS], "BOS FAIL L2 less > BOS ERR less > <31> ERR less > <", 1.0),
    (
        [L1, MINUS, L2, LESS, SUBMIT],
        "BOS FAIL L2 less > L1 FAIL add + - FAIL add - L2 FAIL less > < FAIL less < SUBMIT",
        0.0,
    ),
    (
        [L3, L4, EQUAL, L2, LESS],
        "BOS FAIL L2 less > L3 FAIL multiply * L4 FAIL equal == == FAIL equal == L2 FAIL less > <",
        1.0,
    ),
    ([TEST] * 9, "BOS FAIL L2 less >" + " TEST FAIL less >" * 4 + " TEST", 0.0),
)


def test_every_action_is_a_command_whose_output_is_the_observation(
    settings: SandboxSettings,
) -> None:
    found = attempts(settings, [(LESS_IS_GREATER, actions) for actions, _, _ in CASES])
    for (tokens, verdict), (_, expected, reward) in zip(found, CASES, strict=True):
        assert (words(tokens), verdict.value) == (expected, reward)


def test_the_transitions_are_those_of_the_real_repository(settings: SandboxSettings) -> None:
    chance = random.Random(0)
    bugs = all_bugs("train") + all_bugs("held_out")
    likely = [*LINE_TOKENS, *OPERATOR_TOKENS, *OPERATOR_TOKENS, TEST, SUBMIT, *range(VOCABULARY)]
    cases = [(chance.choice(bugs), chance.choices(likely, k=5)) for _ in range(30)]
    found = attempts(settings, cases)
    for (bug, actions), (tokens, verdict) in zip(cases, found, strict=True):
        expected = trace(bug, actions)
        assert tokens == list(expected.ids)
        assert verdict.value == float(expected.passed)


def test_the_tests_tell_every_operator_of_a_family_from_the_right_one(
    settings: SandboxSettings,
) -> None:
    bugs = list({(bug.right, bug.wrong): bug for bug in all_bugs("train")}.values())
    empty = attempts(settings, [(bug, [SUBMIT]) for bug in bugs])
    gold = attempts(settings, [(bug, repair(bug)) for bug in bugs])
    assert [verdict.value for _, verdict in empty] == [0.0] * 12
    assert [verdict.value for _, verdict in gold] == [1.0] * 12


def test_verbose_tests_fill_the_context_and_change_nothing_else(
    settings: SandboxSettings,
) -> None:
    async def run(sandboxes: Sandboxes) -> tuple[list[int], Verdict]:
        async with sandboxes.open(UNRECORDED) as sandbox:
            return await attempt(sandbox, LESS_IS_GREATER, [L1, L2, EQUAL, LESS], trace_lines=3)

    tokens, verdict = with_sandboxes(settings, run)
    told = "L1 FAIL add + L2 FAIL less > == FAIL <22> <23> <24> less == <"
    assert words(tokens) == f"BOS FAIL L2 less > {told}"
    assert verdict.value == 1.0
    tasks = micro_repair("train", verbose=2)
    assert [task.trace_lines for task in tasks.tasks[:3]] == [100, 100, 0]  # type: ignore[attr-defined]
    assert tasks.caps.context_tokens == 128


def test_a_verdict_counts_the_tests(settings: SandboxSettings) -> None:
    ((_, verdict),) = attempts(settings, [(LESS_IS_GREATER, [L1, MINUS])])
    assert (verdict.value, verdict.tests_passed, verdict.tests_failed) == (0.0, 2, 2)
    assert verdict.components == {"tests": 0.5}
    assert not verdict.isolated


@pytest.mark.parametrize(
    ("command", "value", "failed", "error_type"),
    [
        ("echo 'print(\"4 passed, 0 failed\")' > tests.py", 0.0, 1, None),
        ("echo def > functions.py", 0.0, 4, None),
        ("cd .. && rm -r repository && touch repository", None, None, "TestsDidNotRun"),
    ],
    ids=["tests are written anew", "a broken source fails all", "no tests, no reward"],
)
def test_whatever_is_left_in_the_repository_is_judged_by_the_tasks_own_tests(
    settings: SandboxSettings,
    command: str,
    value: float | None,
    failed: int | None,
    error_type: str | None,
) -> None:
    verdict = with_sandboxes(
        settings,
        lambda sandboxes: verdict_on(
            sandboxes,
            MicroRepair.of(LESS_IS_GREATER),
            lambda sandbox: sandbox.run(f"cd repository && {command}", timeout_s=20),
        ),
    )
    assert (verdict.value, verdict.tests_failed) == (value, failed)
    assert verdict.error_type == error_type


def test_a_command_without_output_shows_what_was_last_seen() -> None:
    scaffold = MicroRepair.of(LESS_IS_GREATER).scaffold()
    action = scaffold.read([L1])
    result: Any = type("Result", (), {"stdout": "", "exit_code": None})
    assert words(scaffold.observe(action, result).token_ids) == "ERR less >"
    edit = scaffold.read([LESS])  # and the cursor has not moved
    assert isinstance(edit, ToolCall)
    assert edit.arguments == "2 <"


def test_what_is_no_action_costs_a_turn() -> None:
    scaffold = MicroRepair.of(LESS_IS_GREATER).scaffold()
    assert scaffold.read([FUNCTION_TOKENS[0]]) == Nothing("add is no action")
    assert scaffold.read([]) == Nothing("a turn is one token, got 0")
    assert scaffold.read([SUBMIT]) == Submit()


def test_a_random_policy_passes_about_one_in_nine() -> None:
    for split in ("train", "held_out"):
        rates = [float(random_pass_rate(bug)) for bug in draw_bugs(split, seed=0)[:4]]
        assert sum(rates) / len(rates) == pytest.approx(0.1152, abs=1e-4)


def test_an_expert_always_passes() -> None:
    for bug in draw_bugs("train", seed=0) + draw_bugs("held_out", seed=0):
        assert trace(bug, repair(bug)).passed
        assert trace(bug, careful_repair(bug)).passed


def test_a_trace_for_sft_trains_on_actions_only() -> None:
    careful = trace(LESS_IS_GREATER, careful_repair(LESS_IS_GREATER))
    assert words(careful.ids) == (
        "BOS FAIL L2 less > L3 FAIL multiply * L2 FAIL less > TEST FAIL less > <"
    )
    acted = [token for token, mask in zip(careful.ids, careful.loss_mask, strict=True) if mask]
    assert words(acted) == "L3 L2 TEST <"


def test_green_ends_an_attempt_and_nothing_else_but_submit_does() -> None:
    for token in range(VOCABULARY):
        after = step(start(LESS_IS_GREATER), token)
        assert after.done == (token in (LESS, SUBMIT))


def test_held_out_bugs_are_unseen_combinations_of_seen_parts() -> None:
    train = draw_bugs("train", seed=0)
    held_out = draw_bugs("held_out", seed=0)
    assert (len(set(train)), len(set(held_out))) == (120, 40)
    assert not {(b.right, b.wrong, b.line) for b in all_bugs("train")} & {
        (b.right, b.wrong, b.line) for b in all_bugs("held_out")
    }
    seen = {(b.right, b.wrong) for b in train}
    assert {(b.right, b.wrong) for b in held_out} <= seen
    lines = Counter(b.line for b in {(b.right, b.wrong): b for b in all_bugs("held_out")}.values())
    assert lines == {1: 4, 2: 4, 3: 4}


def test_the_same_seed_draws_the_same_tasks() -> None:
    assert micro_repair("train", seed=0).subset_sha256 == (
        "f92f2483264bb6f5b38c40b917d3ad111978c5565dabf057c9daf85a4cde8fbf"
    )
    assert micro_repair("train", seed=1).subset_sha256 != micro_repair("train").subset_sha256


def test_a_task_set_says_what_it_asks_of_the_model() -> None:
    tasks = micro_repair("held_out", limit=3)
    assert (tasks.vocab_size, tasks.action_tokens, tasks.caps.turns) == (32, 1, 5)
    assert (tasks.dataset, tasks.split, tasks.subset) == (
        "micro_repair",
        "held_out",
        "seed=0, first 3",
    )
    assert tasks.caps.context_tokens == max(
        len(trace(LESS_IS_GREATER, actions).ids) for actions in product([L1, PLUS], repeat=5)
    )
    with pytest.raises(TasksRefused, match="one of train, held_out, got 'test'"):
        micro_repair("test")
