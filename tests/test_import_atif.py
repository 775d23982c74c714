"""ATIF by itself, and out again: what counts as a turn, whose tokens, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from api.cli import app
from ledger.open_log import open_log
from producers.importers.held import declared_runs
from tests.books import append
from tests.builders import a_fact, an_id
from tests.foreign import booked, imported, put, refused
from tests.foreign_harbor import a_call, a_step, an_atif

FORM = "atif"


def tokens(prompt: list[int], completion: list[int]) -> dict[str, Any]:
    """Metrics of a step whose token ids are known."""
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(completion),
        "cached_tokens": 0,
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "logprobs": [-0.5] * len(completion),
    }


def test_copied_context_counts_once_and_a_sub_agents_tokens_are_the_attempts(
    tmp_path: Path, sqlite_url: str
) -> None:
    """Its own 2 turns, 1 of a sub-agent, 1 of the continuation, which copies the first 2."""
    sub = {
        "subagent_trajectory_ref": [{"trajectory_path": "trajectory.summarization-1-summary.json"}]
    }
    own = [a_step("user"), a_step(), a_step()]
    put(
        tmp_path / "trajectory.json",
        an_atif(
            [*own, a_step("system", observation={"results": [sub]})],
            (200, 100, 20),
            continued_trajectory_ref="trajectory.cont-1.json",
        ),
    )
    put(tmp_path / "trajectory.summarization-1-summary.json", an_atif([a_step()]))
    copied = [each | {"is_copied_context": True} for each in own]
    put(tmp_path / "trajectory.cont-1.json", an_atif([*copied, a_step()], (400, 200, 40)))
    said = imported(FORM, tmp_path, sqlite_url)
    assert said.status == 0, said
    assert said.figures["prompt_tokens of trajectory.json"] == (400, 400, "agrees")
    assert booked(sqlite_url, tmp_path, "SELECT count(*), sum(completion_tokens) FROM turns") == [
        (4, 40)
    ]


def test_a_part_that_is_missing_is_named_as_the_reason_of_the_difference(
    tmp_path: Path, sqlite_url: str
) -> None:
    atif = an_atif([a_step()], (200, 100, 20), continued_trajectory_ref="trajectory.cont-1.json")
    said = imported(FORM, put(tmp_path / "trajectory.json", atif), sqlite_url)
    assert said.status == 0
    assert said.figures["prompt_tokens of trajectory.json"] == (
        200, 100, "differs: without files that it names: trajectory.cont-1.json",
    )  # fmt: skip


def test_what_is_exported_is_atif_and_comes_back_the_same(tmp_path: Path, sqlite_url: str) -> None:
    """The second prompt extends the first turn's tokens; the third doesn't: another segment."""
    steps = [
        a_step("user"),
        a_step(metrics=tokens([1, 2, 3], [4, 5]), timestamp="2026-04-13T02:00:00+00:00",
               tool_calls=[a_call(0, command="ls")],
               observation={"results": [{"content": "x" * 10_000}]}),
        a_step(metrics=tokens([1, 2, 3, 4, 5, 6], [7])),
        a_step(metrics=tokens([9], [8])),
    ]  # fmt: skip
    put(tmp_path / "in" / "trajectory.json", an_atif(steps, (10, 0, 4)))
    assert imported(FORM, tmp_path / "in", sqlite_url).status == 0
    assert booked(sqlite_url, tmp_path, "SELECT segment FROM turns ORDER BY turn_no") == [
        (0,), (0,), (1,),
    ]  # fmt: skip
    ((run_id, trajectory_id),) = booked(
        sqlite_url, tmp_path, "SELECT run_id::VARCHAR, trajectory_id::VARCHAR FROM trajectories"
    )
    arguments = ["export", "atif", "--log", sqlite_url, "--run", run_id, "--tokens"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    atif = json.loads((tmp_path / "out" / f"{trajectory_id}.json").read_text())
    check_structure(atif)
    turns = [each["metrics"] for each in atif["steps"] if "metrics" in each]
    assert [(each["prompt_token_ids"], each["completion_token_ids"]) for each in turns] == [
        ([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7]), ([9], [8]),
    ]  # fmt: skip
    call = atif["steps"][1]
    assert call["tool_calls"][0]["arguments"] == {"command": "ls"}
    content = call["observation"]["results"][0]["content"]
    assert content.startswith("x" * 2_000 + "\n[... 6000 characters left out, sha256 of the whole ")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    said = imported(FORM, tmp_path / "out", other)
    assert said.status == 0
    assert said.figures[f"prompt_tokens of {trajectory_id}.json"] == (10, 10, "agrees")


def check_structure(atif: dict[str, Any]) -> None:
    """What Harbor's models hold a trajectory to, as far as an export can miss it."""
    allowed = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes",
               "final_metrics", "extra"}  # fmt: skip
    assert set(atif) <= allowed
    assert {"name", "version"} <= set(atif["agent"])
    assert [each["step_id"] for each in atif["steps"]] == list(range(1, len(atif["steps"]) + 1))
    assert atif["final_metrics"]["total_steps"] == len(atif["steps"])
    only_agents = {"model_name", "tool_calls", "metrics"}
    for step in atif["steps"]:
        assert isinstance(step["message"], str)
        assert step["source"] == "agent" or not only_agents & set(step)
        assert step.get("llm_call_count") != 0 or "metrics" not in step
        ids = {each["tool_call_id"] for each in step.get("tool_calls", [])}
        for result in step.get("observation", {}).get("results", []):
            assert result["source_call_id"] in ids


def test_an_export_takes_a_run_by_the_beginning_of_its_id_or_its_name(
    tmp_path: Path, sqlite_url: str
) -> None:
    for name in ("one", "two"):
        put(tmp_path / name / "trajectory.json", an_atif([a_step()], session_id=name))
        assert imported(FORM, tmp_path / name, sqlite_url).status == 0
    with open_log(sqlite_url) as log:
        runs = declared_runs(log)
        append(log, [a_fact("run_declared", run_id=an_id("run", i), name="both") for i in (1, 2)])
    assert sorted(runs.values()) == ["one", "two"]

    def exported(text: str) -> list[str]:
        out = tmp_path / "out" / text
        arguments = ["export", "atif", "--log", sqlite_url, "--run", text, "--out", str(out)]
        done = CliRunner().invoke(app, arguments)
        if done.exit_code:
            return [str(done.exception)]
        return [each.name for each in out.iterdir()]

    files = {run_id: exported(run_id) for run_id in runs}
    assert len({name for names in files.values() for name in names}) == 2
    for run_id, name in runs.items():
        for text in (name, run_id[:8], run_id[:8].upper(), run_id.upper()):
            assert exported(text) == files[run_id]
        assert exported(run_id[:3])[0].endswith(f"got {run_id[:3]!r}, which means none")
    both = sorted(f"{an_id('run', i)} (both)" for i in (1, 2))
    assert exported("both")[0].endswith(f"got 'both', which means {both[0]}, {both[1]}")


def test_an_export_of_nothing_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    imported(FORM, put(tmp_path / "trajectory.json", an_atif([a_step()])), sqlite_url)
    nobody = "00000000-0000-5000-8000-000000000000"
    arguments = ["export", "atif", "--log", sqlite_url, "--run", nobody, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert str(done.exception) == f"--run must be a run with attempts in this log, got {nobody}"


def test_bad_input_gets_value_rule_and_place(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(FORM, tmp_path / "empty") == (
        "empty must have a trajectory in ATIF below it, got none"
    )
    assert refused(FORM, put(tmp_path / "a.json", an_atif([]) | {"steps": None})) == (
        "a.json#/steps must be an array of steps, got null"
    )
    negative = an_atif([a_step(metrics={"prompt_tokens": 1.5})])
    assert refused(FORM, put(tmp_path / "b.json", negative)) == (
        "b.json#/steps/0/metrics/prompt_tokens must be a whole number, got 1.5"
    )
    loop = an_atif([a_step()], continued_trajectory_ref="c.json")
    assert refused(FORM, put(tmp_path / "c.json", loop)) == "c.json# must not refer to itself"
