"""A demo's folder, its settings for commands, and what each part is started with."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

import pytest

from api.assemble_commands import assembler_settings
from api.demo.accounts import command_here
from api.demo.children import Parts
from api.demo.plan import Demo, DemoError, Evaluation, Plan, held, new_demo, usual_folder
from api.demo.run import complete_book
from api.demo.services import newest_version
from api.settings import load, without_settings
from api.train_commands import training_settings
from consumers.assembling.settings import Mode
from ledger.book import connect
from tests.builders import an_id
from tests.recorded import run_script


def a_demo(folder: Path, **plan: object) -> Demo:
    return new_demo(folder / "demo", Plan(**plan))  # type: ignore[arg-type]


def test_a_demo_goes_on_as_it_was_asked_for_and_as_far_as_it_had_come(tmp_path: Path) -> None:
    demo = a_demo(tmp_path, steps=3, sync=True, faults=("lost:p=0.1",))
    demo.evaluations["before"] = Evaluation(an_id("run"), done=True)
    demo.seconds["start"] = 1.5
    demo.save()
    assert Demo.at(tmp_path / "demo") == demo


def test_a_folder_with_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    a_demo(tmp_path)
    with pytest.raises(DemoError, match=r"has a demo: go on with --resume, or name another folder"):
        a_demo(tmp_path)
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(DemoError, match="has files: name another folder"):
        new_demo(tmp_path, Plan())


def test_what_is_no_demo_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=f"--resume needs the folder of a demo, and {tmp_path}"):
        Demo.at(tmp_path)
    (tmp_path / "demo.json").write_text('{"plan": {"faults": [], "stepps": 3}}')
    with pytest.raises(DemoError, match=r"demo\.json must be of this version.*stepps"):
        Demo.at(tmp_path)


def test_without_a_name_a_demo_gets_a_folder_of_its_own_and_the_last_goes_on(
    tmp_path: Path,
) -> None:
    first = tmp_path / "demo"
    assert usual_folder(resume=True, first=first) == first  # which then says that it is no demo
    for name in ("demo", "demo-2", "demo-3"):
        folder = usual_folder(resume=False, first=first)
        assert folder.name == name
        folder.mkdir()
        assert usual_folder(resume=True, first=first) == folder


def test_a_folder_has_one_demo_at_a_time(tmp_path: Path) -> None:
    with (
        held(tmp_path),
        pytest.raises(DemoError, match=f"another demo runs in {tmp_path}"),
        held(tmp_path),
    ):
        pass
    with held(tmp_path):
        pass


def test_a_log_is_sqlite_kafka_or_a_url() -> None:
    with pytest.raises(DemoError, match="sqlite, kafka or a log's URL, got 'kafak'"):
        Plan(log="kafak")
    assert Plan(log="kafka://host:9092/lab").log == "kafka://host:9092/lab"


def test_every_command_finds_its_settings_in_the_demos_folder(tmp_path: Path) -> None:
    demo = a_demo(tmp_path, sync=True)
    parts = Parts(demo)
    parts.write_config()
    settings = load(demo.config)
    assert settings.log.url == f"sqlite:///{tmp_path}/demo/log.db"
    assert settings.engines.urls == [parts.engine_url]
    assert settings.sandboxes.url == parts.sandboxes_url
    assert settings.book.path == demo.book
    assembler = assembler_settings(demo.config, [])
    assert (assembler.mode, assembler.groups_per_batch) == (Mode.SYNC, 4)
    trainer = training_settings(demo.config, [])
    assert (trainer.optimizer.learning_rate, trainer.loss.truncate_at) == (3e-3, 2.0)


def test_what_the_environment_says_of_settings_is_kept_from_the_parts() -> None:
    environment = {
        "ROLLBOOK_LOG__URL": "kafka://production:9092/lab",
        "ROLLBOOK_TRAINER": "{}",
        "ROLLBOOK_CACHE": "/cache",
        "PATH": "/bin",
    }
    assert without_settings(environment) == {"ROLLBOOK_CACHE": "/cache", "PATH": "/bin"}


def test_the_commands_at_the_end_work_in_the_shell_that_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Path(command_here()).resolve() == Path(sys.executable).with_name("rollbook").resolve()
    (tmp_path / "rollbook").write_text("#!/bin/sh\n")
    (tmp_path / "rollbook").chmod(0o755)
    assert command_here() == "rollbook"


def test_two_demos_have_ports_of_their_own(tmp_path: Path) -> None:
    one, two = Parts(a_demo(tmp_path / "one")), Parts(a_demo(tmp_path / "two"))
    ports = {one.engine_port, one.sandboxes_port, two.engine_port, two.sandboxes_port}
    assert len(ports) == 4


def test_an_engine_starts_on_the_newest_version_from_a_copy(tmp_path: Path) -> None:
    demo = a_demo(tmp_path)
    demo.policy.mkdir()
    (demo.policy / "config.json").write_text("{}")
    line = Parts(demo).engine().command()
    assert f"--model-path={tmp_path}/demo/engine/version-0" in line
    assert "--weight-version=0" in line
    for version in (9, 10):
        shutil.copytree(demo.policy, demo.versions / f"version-{version:08}")
    (demo.versions / ".version-00000011").mkdir()
    assert newest_version(demo.versions) == (demo.versions / "version-00000010", 10)
    line = Parts(demo).engine().command()
    shutil.rmtree(demo.versions)
    assert f"--model-path={tmp_path}/demo/engine/version-10" in line
    assert "--weight-version=10" in line
    assert (demo.folder / "engine" / "version-10" / "config.json").is_file()


def test_rollouts_of_each_life_meet_the_tasks_in_another_order(tmp_path: Path) -> None:
    child = Parts(a_demo(tmp_path, seed=3)).rollout()
    orders = [line[line.index("--shuffle") + 1] for line in (child.command(), child.command())]
    assert orders == ["3000", "3001"]
    assert child.needs == ("engine", "sandboxes")


def test_what_a_part_left_in_its_spool_is_in_the_book_at_the_end(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'later' / 'log.db'}"
    left = "recorder = a_recorder()\nrecorder.turn_completed(**IDS, turn_no=7)\nrecorder.close(1.0)"
    run_script(left, url, tmp_path / "spool")
    assert len(list((tmp_path / "spool").rglob("*.spool"))) == 1
    (tmp_path / "later").mkdir()
    complete_book(url, tmp_path / "spool", tmp_path / "book")
    with contextlib.closing(connect(tmp_path / "book", read_only=True)) as book:
        assert book.execute("SELECT turn_no FROM turn_completed").fetchall() == [(7,)]
    assert list((tmp_path / "spool").rglob("*.spool")) == []
