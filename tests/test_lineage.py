"""From stored traces to a policy by fine-tuning, and from that to one by reinforcement: facts name
where each came from, and attempts show that the first one learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from ledger.facts.lists import RunKind, StopReason
from ledger.recorder import Recorder
from ledger.tokens import Tokens
from producers.tasks.micro_repair.bugs import Bug, draw_bugs
from producers.tasks.micro_repair.scaffold import MicroRepairScaffold
from producers.tasks.micro_repair.vocabulary import OPERATOR_TOKENS
from tests.builders import an_id
from tests.engine_lab import EngineLab
from tests.recorded import facts_in, of
from tests.test_rollout import a_place

pytestmark = [pytest.mark.engine, pytest.mark.trainer, pytest.mark.sandboxes]

SCRIPTED, TUNED, LEARNED = (an_id("run", number) for number in (901, 902, 903))
SFT_STEPS = 24
"""Of 60 traces in batches of 5, twice over."""


def script(url: str, seed: int) -> None:
    """What a policy that knows every answer does: one edit, and it is right."""
    with Recorder(url, producer="script", run_id=SCRIPTED) as recorder:
        if seed == 0:
            recorder.run_declared(kind=RunKind.TRAIN, name="scripted", model="script")
        for number, bug in enumerate(draw_bugs("train", seed)[:60]):
            attempt(recorder, bug, 1000 * seed + number)


def attempt(recorder: Recorder, bug: Bug, number: int) -> None:
    task_id, group_id = f"{bug.name}/{number}", an_id("scripted group", number)
    prompt = MicroRepairScaffold(bug).prompt()
    recorder.group_opened(group_id=group_id, task_id=task_id, expected_size=1)
    one = recorder.bind(group_id=group_id, slot=0, trajectory_id=an_id("scripted attempt", number))
    one.trajectory_started(task_id=task_id)
    ids = [*prompt, OPERATOR_TOKENS[bug.right]]
    mask = [0] * len(prompt) + [1]
    one.turn_completed(
        turn_no=0,
        prompt_tokens=len(prompt),
        completion_tokens=1,
        tokens=Tokens(ids, mask, [0.0] * len(ids)),
    )
    one.reward_assigned(value=1.0, verifier="script")
    one.trajectory_finished(stop_reason=StopReason.SUBMITTED, reward_due=True, turns_completed=1)


def rollbook(*line: str) -> str:
    done = CliRunner().invoke(app, list(line))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_fine_tuning_and_then_reinforcement_name_their_lineage(
    tmp_path: Path, sqlite_url: str, engine_lab: EngineLab
) -> None:
    for seed in (0, 1):
        script(sqlite_url, seed)
    log, tuned = ("--log", sqlite_url), tmp_path / "tuned"
    rollbook("assemble-sft", "--from", SCRIPTED, "--run", TUNED, "--per-batch", "5", *log)
    rollbook(
        "train", "--run", TUNED, "--model", str(engine_lab.weights[0]), "--steps", str(SFT_STEPS),
        "--checkpoints", str(tmp_path / "sft"), "--versions", str(tuned), *log,
        "--set", "objective=likelihood", "--set", "learning_rate=1e-2",
    )  # fmt: skip
    policy = max(tuned.glob("version-*"))
    try:
        with a_place(tmp_path, sqlite_url, engine_lab.url) as place:
            engine_lab.weights[900] = policy
            engine_lab.update(900, 0)
            lineage = ("--parent", TUNED, "--parent-version", str(SFT_STEPS))
            row = place.run(
                "--run-id", LEARNED, "--groups", "10", "--group-size", "4",
                "--turn-cap", "1",  # groups surely differ
                "--shuffle", "1", *lineage,
            )  # fmt: skip
            rollbook("assemble", "--run", LEARNED, "--set", "groups_per_batch=1", *log)
            rollbook(
                "train", "--run", LEARNED, "--model", str(policy), "--steps", "1",
                "--checkpoints", str(tmp_path / "rl"), "--engine", engine_lab.url, *log,
            )  # fmt: skip
            served = engine_lab.ask("/get_model_info")["weight_version"]
    finally:
        del engine_lab.weights[900]
        engine_lab.restore()

    facts = facts_in(sqlite_url)
    declared = {fact.run_id: fact for fact in of(facts, "RunDeclared")}
    assert (declared[TUNED].kind, declared[TUNED].parent_run_id) == ("sft", SCRIPTED)
    learned = declared[LEARNED]
    assert (learned.kind, learned.parent_run_id) == ("train", TUNED)
    assert learned.parent_policy_version == SFT_STEPS
    steps = [fact for fact in of(facts, "StepCompleted") if fact.run_id == TUNED]
    assert [fact.step for fact in steps] == list(range(1, SFT_STEPS + 1))
    assert steps[-1].loss < 0.5 * steps[0].loss
    traces = {
        trace
        for fact in of(facts, "BatchAssembled")
        if fact.run_id == TUNED
        for trace in fact.trace_ids
    }
    assert traces == {
        an_id("scripted attempt", 1000 * seed + number) for seed in (0, 1) for number in range(60)
    }
    assert row["mean_reward"] > 0.12  # with one turn an untrained policy passes once in 32
    assert served == "1"
