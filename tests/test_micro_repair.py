"""micro_repair: the tokens, the split, the real repository beside the pure transitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.folder_sandboxes import folder_sandbox

LESS_IS_GREATER = Bug(functions=(0, 3, 2, 5), line=1, wrong=4)
"""add, less, multiply, equal; less has `>`."""
PLUS, MINUS, _, LESS, GREATER, EQUAL = OPERATOR_TOKENS
L1, L2, L3, L4 = LINE_TOKENS


def words(tokens: Sequence[int]) -> str:
    return " ".join(map(word, tokens))


async def attempt(task: MicroRepair, actions: Sequence[int]) -> tuple[list[int], Verdict]:
    """The tokens of an attempt in a real repository, as far as it gets, and its verdict."""
    async with folder_sandbox() as sandbox:
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
        return tokens, await task.verify(sandbox, folder_sandbox)


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


@pytest.mark.parametrize(
    ("actions", "tokens", "reward"),
    [
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
            "BOS FAIL L2 less > L3 FAIL multiply * L4 FAIL equal == == FAIL equal =="
            " L2 FAIL less > <",
            1.0,
        ),
        ([TEST] * 9, "BOS FAIL L2 less >" + " TEST FAIL less >" * 4 + " TEST", 0.0),
    ],
)
def test_every_action_is_a_command_whose_output_is_the_observation(
    actions: list[int], tokens: str, reward: float
) -> None:
    seen, verdict = asyncio.run(attempt(MicroRepair.of(LESS_IS_GREATER), actions))
    assert words(seen) == tokens
    assert verdict.value == reward


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(all_bugs("train") + all_bugs("held_out")),
    st.lists(
        st.one_of(
            st.sampled_from([*LINE_TOKENS, *OPERATOR_TOKENS, TEST, SUBMIT]),
            st.integers(0, VOCABULARY - 1),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_the_transitions_are_those_of_the_real_repository(bug: Bug, actions: list[int]) -> None:
    tokens, verdict = asyncio.run(attempt(MicroRepair.of(bug), actions))
    expected = trace(bug, actions)
    assert tokens == list(expected.ids)
    assert verdict.value == float(expected.passed)


def test_the_tests_tell_every_operator_of_a_family_from_the_right_one() -> None:
    async def verdicts() -> Counter[tuple[str, float | None]]:
        found: Counter[tuple[str, float | None]] = Counter()
        bugs = {(bug.right, bug.wrong): bug for bug in all_bugs("train")}
        for bug in bugs.values():
            task = MicroRepair.of(bug)
            async with folder_sandbox() as sandbox:
                await task.setup(sandbox)
                found["empty", (await task.verify(sandbox, folder_sandbox)).value] += 1
                await task.apply_gold(sandbox)
                found["gold", (await task.verify(sandbox, folder_sandbox)).value] += 1
        return found

    assert asyncio.run(verdicts()) == {("empty", 0.0): 12, ("gold", 1.0): 12}


def test_a_verdict_counts_the_tests() -> None:
    _, verdict = asyncio.run(attempt(MicroRepair.of(LESS_IS_GREATER), [L1, MINUS]))
    assert (verdict.value, verdict.tests_passed, verdict.tests_failed) == (0.0, 2, 2)
    assert verdict.components == {"tests": 0.5}
    assert not verdict.isolated


async def verdict_after(command: str) -> Verdict:
    task = MicroRepair.of(LESS_IS_GREATER)
    async with folder_sandbox() as sandbox:
        await task.setup(sandbox)
        await sandbox.run(command, timeout_s=10)
        return await task.verify(sandbox, folder_sandbox)


def test_tests_that_were_edited_are_written_anew() -> None:
    verdict = asyncio.run(
        verdict_after("echo 'print(\"4 passed, 0 failed\")' > repository/tests.py")
    )
    assert (verdict.value, verdict.tests_failed) == (0.0, 1)


def test_a_source_that_does_not_compile_fails_all_tests() -> None:
    verdict = asyncio.run(verdict_after("echo 'def' > repository/functions.py"))
    assert (verdict.value, verdict.tests_failed) == (0.0, 4)


def test_tests_that_could_not_run_give_no_reward() -> None:
    verdict = asyncio.run(verdict_after("rm -r repository && touch repository"))
    assert (verdict.value, verdict.error_type) == (None, "TestsDidNotRun")


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
        rates = [float(random_pass_rate(bug)) for bug in draw_bugs(split, seed=0)[:12]]
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
