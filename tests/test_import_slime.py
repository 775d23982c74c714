"""Importing slime's console lines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from producers.importers.slime_lines import numbers_of, read_lines
from producers.importers.source import BadImport, SourceFile
from tests.foreign import booked, imported, refused
from tests.foreign_slime import LINES, console


def test_a_rollout_with_a_time_is_a_step_and_its_phases_add_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    said = imported("slime", console(tmp_path, LINES), url)
    assert said.status == 0
    assert "optimizer step 0 belongs to no rollout with a time" in said.notes
    assert said.figures["rollout 1 wait_time_ratio"] == (0.85, 0.85, "agrees")
    assert said.figures["rollout 1 step_time = train_wait_time + train_time"][2] == "agrees"
    assert booked(
        url,
        tmp_path,
        "SELECT step, wall_s, waiting_s, publishing_s, engine_switch_s, loading_s, logprobs_s,"
        " forward_backward_s, unattributed_s, loss, started_at, ended_at,"
        " metrics['rollout/raw_reward'], metrics['perf/rollout_time'] FROM steps",
    ) == [(1, 400.0, 330.0, 2.5, 7.5, 0.5, 17.0, 42.0, 0.5, 0.5, None, None, 0.375, 320.0)]


def test_importing_again_adds_nothing_and_a_longer_log_only_what_is_new(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    path = console(tmp_path, LINES)
    imported("slime", path, url)
    assert "0 facts new, 2 known" in imported("slime", path, url).notes
    console(tmp_path, f"{LINES}perf 2: {{'perf/step_time': 10.0}}\n")
    assert "1 facts new, 2 known" in imported("slime", path, url).notes
    assert booked(url, tmp_path, "SELECT step, wall_s FROM steps ORDER BY step") == [
        (1, 400.0),
        (2, 10.0),
    ]


def test_a_figure_that_the_parts_contradict_is_a_finding(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    wrong = LINES.replace("'perf/step_time': 400.0", "'perf/step_time': 410.0")
    said = imported("slime", console(tmp_path, wrong), url)
    assert said.status == 1
    claim = "rollout 1 step_time = train_wait_time + train_time"
    assert said.figures[claim] == (410.0, 400.0, "differs")


def test_a_value_that_is_printed_again_and_differs_is_noted() -> None:
    text = "perf 4: {'perf/step_time': 1.0}\nperf 4: {'perf/step_time': 2.0}\n"
    lines = read_lines(SourceFile("console.log", "0", text))
    assert lines.rollouts[4].numbers == {"perf/step_time": 2.0}
    (note,) = lines.notes
    assert note.startswith("console.log line 2: perf 4 says perf/step_time again")


def test_a_cut_off_line_is_refused_and_nothing_of_a_line_is_run(tmp_path: Path) -> None:
    assert "console.log line 1 must hold one whole dict" in refused(
        "slime", console(tmp_path, "perf 1: {'perf/step_time': 1.0, 'perf/tra")
    )
    assert "must have lines such as" in refused("slime", console(tmp_path, "hello\n"))
    (tmp_path / "empty").mkdir()
    assert "must hold console output" in refused("slime", tmp_path / "empty")
    hostile = "{'a': __import__('os').getpid(), 'b': [1, 2], 'c': -inf, 'd': tensor(3)}"
    assert numbers_of(hostile, "here") == {"c": -math.inf, "d": 3.0}
    with pytest.raises(BadImport, match="here must hold one whole dict, got"):
        numbers_of("{" * 5_000, "here")
