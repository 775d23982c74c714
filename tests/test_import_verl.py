"""Importing verl: rollout samples and console lines."""

from __future__ import annotations

from pathlib import Path

from producers.importers.source import SourceFile
from producers.importers.verl_lines import VerlStep, read_steps
from tests.foreign import booked, imported, read, refused
from tests.foreign_verl import a_folder, a_line, a_sample

SAMPLES = [
    a_sample(10, "2+2?", 1.0, acc=True, pred="4", request_id="r0"),
    a_sample(10, "2+2?", 0.0, acc=False, pred="5", request_id="r1"),
    a_sample(10, "3+3?", 0.5, acc=False, pred="7", request_id="r2"),
    a_sample(10, "3+3?", -1.0, acc=False, pred=None, request_id="r3"),
]


def test_samples_and_lines_are_one_run_and_their_figures_agree(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    lines = a_line(10, 96.0, **{"critic/score/mean": 0.125})
    folder = a_folder(tmp_path / "rollouts", {10: SAMPLES}, lines)
    said = imported("verl", folder, url)
    assert said.status == 0
    assert said.figures["step 10 critic/score/mean"] == (0.125, 0.125, "agrees")
    assert said.figures["step 10 GPUs, by throughput"] == (None, 2, "not stated")
    assert said.figures["step 10 mean tokens of a trajectory"] == (150.0, 150.0, "agrees")
    assert "0 facts new" in imported("verl", folder, url).notes
    assert booked(
        url,
        tmp_path,
        "SELECT step, wall_s, waiting_s, logprobs_s, forward_backward_s, evaluation_s,"
        " checkpoint_s, unattributed_s, trajectories, trained_tokens, computed_tokens, started_at"
        " FROM steps",
    ) == [(10, 120.0, 30.0, 15.0, 50.0, 20.0, 4.0, 1.0, 4, None, 600, None)]
    assert booked(url, tmp_path, "SELECT trainer_gpus FROM resources_declared") == [(2,)]
    # Attempts at one input are a group, and nothing else of them is made up.
    assert booked(
        url,
        tmp_path,
        "SELECT target_step, list(reward ORDER BY slot), any_value(turns_declared),"
        " any_value(started_at), any_value(foreign_status), any_value(completion_tokens)"
        " FROM trajectories JOIN opened_groups USING (group_id) GROUP BY group_id, target_step"
        " ORDER BY 2",
    ) == [
        (10, [0.5, -1.0], None, None, None, None),
        (10, [1.0, 0.0], None, None, None, None),
    ]
    assert booked(
        url, tmp_path, "SELECT components['acc'] FROM reward_assigned WHERE value = 1.0"
    ) == [(1.0,)]


def test_samples_with_a_uid_are_grouped_by_it_and_a_session_is_one_attempt(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    rows = [
        a_sample(10, "2+2?", 1.0, uid="p-1_0_0"),
        a_sample(10, "2+2?", 0.0, uid="p-1_1_0"),
        a_sample(10, "2+2?", 0.25, uid="p_2_0_0"),  # another row of the dataset, the same text
        a_sample(10, "2+2? so far", 0.5, uid="p_2_1_1"),
        a_sample(10, "2+2?", 0.75, uid="p_2_1_0"),
        a_sample(10, "9?", 1.0, uid=7),  # no uid of this form
    ]
    lines = a_line(10, 96.0, **{"critic/score/mean": 3.5 / 6})
    said = imported("verl", a_folder(tmp_path / "rollouts", {10: rows}, lines), url)
    assert said.status == 0
    assert "10.jsonl: 6 outputs are of 5 sessions" in said.notes
    assert "unequally" not in said.notes
    assert said.figures["step 10 samples"] == (5, 5, "agrees")
    assert said.figures["step 10 critic/score/mean"][2].startswith("differs: verl's mean is over")
    assert booked(
        url,
        tmp_path,
        "SELECT list(reward ORDER BY slot), count(DISTINCT task_id) FROM trajectories"
        " GROUP BY group_id ORDER BY 1",
    ) == [([0.25, 0.5], 1), ([1.0], 1), ([1.0, 0.0], 1)]
    assert booked(url, tmp_path, "SELECT count(*) FROM task_declared") == [(2,)]


def test_a_step_time_has_testing_in_it_or_not_by_verls_version() -> None:
    text = a_line(1, 96.0) + a_line(2, 120.0)
    without, inside = read_steps(SourceFile("train.log", "0", text))
    assert (without.step_has_extra, without.wall_s) == (False, 120.0)
    assert (inside.step_has_extra, inside.wall_s) == (True, 120.0)
    assert VerlStep(3, {"timing_s/gen": 1.0}, "/1").wall_s is None


def test_validation_is_a_run_of_its_own_for_each_step(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    samples = {0: [a_sample(0, "2+2?", 0.0)], 20: [a_sample(20, "2+2?", 1.0)]}
    folder = a_folder(tmp_path / "validation", samples)
    assert imported("verl", folder, url, "--set", "kind=eval").status == 0
    assert booked(url, tmp_path, "SELECT name, pass_at_1_pooled FROM pass_at_1 ORDER BY name") == [
        ("validation step 0", 0.0),
        ("validation step 20", 1.0),
    ]


def test_a_step_that_was_logged_again_counts_twice_and_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(a_line(1, 96.0) + a_line(1, 90.0) + "step:2 - actor/lr:1e-05\n")
    (run,) = read("verl", path)
    assert run.notes == [
        "train.log#/2: step 1 was logged again",
        "train.log#/3: step 2 has no timing_s/step",
    ]
    steps = [draft.fields for draft in run.drafts() if draft.name == "step_completed"]
    assert [each["wall_s"] for each in steps] == [120.0, 114.0]
    assert steps[0]["event_id"] != steps[1]["event_id"]


def test_flags_and_names_with_spaces_are_metrics_of_a_line(tmp_path: Path) -> None:
    told = "val-core/MATH (hard)/acc/mean@1:np.float64(0.5) - training/resumed:True - x/off:False"
    path = tmp_path / "train.log"
    path.write_text(f"{a_line(1, 96.0).rstrip()} - {told}\n")
    (run,) = read("verl", path)
    (step,) = [draft.fields for draft in run.drafts() if draft.name == "step_completed"]
    assert step["metrics"]["val-core/MATH (hard)/acc/mean@1"] == 0.5
    assert (step["metrics"]["training/resumed"], step["metrics"]["x/off"]) == (1.0, 0.0)
    path.write_text("step:1 - perf/x:1.0 (WorkerDict pid=3) loaded:2\n")  # two writers' output
    assert "train.log line 1 must be key:number" in refused("verl", path)


def test_a_score_that_the_console_contradicts_is_a_finding(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    lines = a_line(10, 96.0, **{"critic/score/mean": 0.25})
    said = imported("verl", a_folder(tmp_path / "rollouts", {10: SAMPLES}, lines), url)
    assert said.status == 1
    assert said.figures["step 10 critic/score/mean"] == (0.25, 0.125, "differs")


def test_bad_input_is_refused_with_value_rule_and_place(tmp_path: Path) -> None:
    cut = a_folder(tmp_path / "cut", {10: SAMPLES})
    text = (cut / "10.jsonl").read_text()
    (cut / "10.jsonl").write_text(text[:-20])
    assert "10.jsonl line 4 must be JSON" in refused("verl", cut)
    assert "neither" in refused("verl", a_folder(tmp_path / "other", {}))
    odd = a_folder(tmp_path / "odd", {10: [a_sample(10, "2+2?", "good")]})
    assert '10.jsonl#/1/score must be a number, got "good"' in refused("verl", odd)
    moved = a_folder(tmp_path / "moved", {11: SAMPLES})
    assert "11.jsonl#/1/step must be 11, as the file is named, got 10" in refused("verl", moved)
    (tmp_path / "bad.log").write_text("step:1 - actor/lr:what\n")
    assert "bad.log line 1 must be key:number" in refused("verl", tmp_path / "bad.log")
    assert "kind must be train or eval" in refused("verl", odd, kind="both")
    empty = a_folder(tmp_path / "empty", {10: []})
    assert "the run is empty" in refused("verl", empty)
