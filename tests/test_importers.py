"""What holds for every importer: one fact once, also after a kill; any input, or its refusal."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.assembler import PRODUCER
from ledger.log import LogUnavailable
from ledger.open_log import open_log
from producers.importers import (
    FORMATS,
    BadImport,
    ForeignRun,
    Options,
    configuration_of,
    figures,
    read_runs,
)
from producers.importers import write as writing
from producers.importers.claims import Claim, Compared
from producers.importers.source import SourceFile
from producers.importers.times import Clock, seconds
from producers.importers.write import Written, check, write
from tests.builders import ANY_SPEED
from tests.foreign import booked, imported, put, read, refused
from tests.foreign_any import FORMS, REWARDED, put_any
from tests.foreign_harbor import a_trial, put_job
from tests.foreign_miles import a_sample, put_dump
from tests.foreign_mini_swe_agent import a_report, put_run
from tests.foreign_prime_rl import BROKEN, an_episode, put_lines
from tests.foreign_terminal_bench import a_trial as a_bench_trial
from tests.foreign_terminal_bench import put_results
from tests.recorded import check_numbers, facts_in


@pytest.fixture
def run(tmp_path: Path) -> ForeignRun:
    return read("mini-swe-agent", put_any("mini-swe-agent", tmp_path / "a_run"))[0]


def test_an_import_that_was_killed_is_finished_by_the_next_without_a_fact_twice(
    run: ForeignRun, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK", 4)
    with open_log(sqlite_url) as log:
        append_each, calls = log.append_each, iter(range(100))

        def dies(records: Any) -> None:
            if next(calls) == 2:
                raise LogUnavailable("killed")
            append_each(records)

        monkeypatch.setattr(log, "append_each", dies)
        with pytest.raises(LogUnavailable):
            write(log, run)
        written = write(log, run)
        assert (written.known, written.new) == (8, len(run.drafts()) - 8)
        assert write(log, run).new == 0
    facts = facts_in(sqlite_url)
    assert sorted(check_numbers(facts).values()) == [8, len(run.drafts()) - 8 + 1]
    assert len({each.event_id for each in facts}) == len(run.drafts()) + 1


def test_the_older_of_two_imports_at_once_says_so_and_the_next_one_ends_it(
    tmp_path: Path, sqlite_url: str
) -> None:
    path = put_any("mini-swe-agent", tmp_path / "a_run")
    (run,) = read("mini-swe-agent", path)
    ended = threading.Event()

    def others_begin() -> None:
        with open_log(sqlite_url) as log:
            while not ended.is_set():
                log.fenced_writer(f"{PRODUCER}:{run.run_id}").close()

    with open_log(sqlite_url):
        other = threading.Thread(target=others_begin)
    other.start()
    try:
        with pytest.raises(BadImport) as refusal:
            imported("mini-swe-agent", path, sqlite_url)
    finally:
        ended.set()
        other.join()
    assert str(refusal.value).startswith(f"another import of run {run.run_id} (")
    assert "import again once the other has ended" in str(refusal.value)
    assert "goes on from what is in the log" in str(refusal.value.__cause__)
    assert imported("mini-swe-agent", path, sqlite_url).status == 0


def test_what_the_log_has_otherwise_is_kept_and_named(
    tmp_path: Path, run: ForeignRun, sqlite_url: str
) -> None:
    """The same attempt, of which the files now tell another end."""
    folder = put_results(tmp_path / "run", [a_bench_trial("a", True)])
    with open_log(sqlite_url) as log:
        write(log, read("terminal-bench", folder)[0])
        put_results(tmp_path / "run", [a_bench_trial("a", True, "agent_timeout")])
        written = write(log, read("terminal-bench", folder)[0])
    assert written.new == 0
    assert [each.split(" at ")[0] for each in written.changed] == ["trajectory_finished"]


def test_every_fact_says_where_it_was_read(run: ForeignRun) -> None:
    places = [str(each.fields["source_ref"]) for each in run.drafts()]
    assert all("#" in each and " sha256:" in each for each in places)


def test_a_configuration_has_no_secrets_and_no_long_texts() -> None:
    given = {"api_key": "sk-1", "max_tokens": 5, "agent": [{"AUTH": "x"}], "text": "y" * 600}
    assert json.loads(configuration_of(given)) == {
        "api_key": "***",
        "max_tokens": 5,
        "agent": [{"AUTH": "***"}],
        "text": {"size": 600, "sha256": hashlib.sha256(b"y" * 600).hexdigest()},
    }


def test_times_of_two_kinds_are_never_subtracted(tmp_path: Path) -> None:
    row = SourceFile.read(
        put(tmp_path / "a.json", {"local": "2026-01-25T16:36:06", "utc": "2026-01-25T21:36:06Z"}),
        tmp_path,
    ).json()
    clock = Clock(None)
    local, utc = clock.read(row, "local"), clock.read(row, "utc")
    assert seconds(local, utc) is None
    assert seconds(local, local) == seconds(utc, utc) == 0.0
    assert clock.unplaced == 1


@pytest.mark.parametrize(
    ("foreign", "ledger", "more", "verdict"),
    [
        (1, 1.0, {}, "agrees"),
        (0.1 + 0.2, 0.3, {}, "agrees"),
        (0.3, 0.31, {}, "differs"),
        (0.3, 0.31, {"because": "reasons"}, "differs: reasons"),
        (66.7, 200 / 3, {"places": 1}, "agrees"),
        (66.6, 200 / 3, {"places": 1}, "differs"),
        (None, 5, {}, "not stated"),
        (0, None, {}, "differs"),
    ],
)
def test_a_difference_is_named_unless_it_is_of_rounding(
    foreign: Any, ledger: Any, more: dict[str, Any], verdict: str
) -> None:
    assert Compared(Claim("figure", foreign, "", "file", **more), ledger).verdict == verdict


attempts = st.lists(
    st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=9), max_size=6
)


@given(attempts, st.integers(1, 6))
@settings(ANY_SPEED, max_examples=40)
def test_pass_at_k_is_the_mean_over_tasks_with_enough_attempts(
    tasks: list[list[bool | None]], k: int
) -> None:
    rows = [
        ("run", f"{i}-{j}", None, f"task {i}", passed)
        for i, outcomes in enumerate(tasks)
        for j, passed in enumerate(outcomes)
    ]
    with duckdb.connect() as book:
        book.execute(
            "CREATE TABLE trajectories (run_id TEXT, trajectory_id TEXT, replaces TEXT,"
            " task_id TEXT, passed BOOLEAN)"
        )
        if rows:
            book.executemany("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?)", rows)
        row = book.execute(figures.pass_at_k(k), {"run": "run"}).fetchone()
    counted = [(len(each), sum(passed is True for passed in each)) for each in tasks]
    due = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counted if n >= k]
    assert row is not None
    assert row[0] == (pytest.approx(sum(due) / len(due)) if due else None)


def written(run: ForeignRun, url: str) -> Written:
    with open_log(url) as log:
        return write(log, run)


@pytest.mark.parametrize("form", FORMS)
def test_importing_again_or_from_elsewhere_adds_nothing(
    form: str, tmp_path: Path, sqlite_url: str
) -> None:
    folder = put_any(form, tmp_path / "a_run")
    first = [written(run, sqlite_url) for run in read(form, folder)]
    assert all(each.new > 0 for each in first)
    elsewhere = tmp_path / "another" / "place" / "a_run"
    elsewhere.parent.mkdir(parents=True)
    folder.rename(elsewhere)
    again = [written(run, sqlite_url) for run in read(form, elsewhere)]
    assert [(each.new, each.known, each.changed) for each in again] == [
        (0, each.new, []) for each in first
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_another_name_is_the_same_run(form: str, tmp_path: Path) -> None:
    folder = put_any(form, tmp_path / "a_run")
    run_ids = [run.run_id for run in read(form, folder)]
    attempts = [each.trajectory_id for run in read(form, folder) for each in run.attempts]
    runs = read(form, folder.rename(tmp_path / "called [otherwise]"))
    assert [run.run_id for run in runs] == run_ids
    assert [each.trajectory_id for run in runs for each in run.attempts] == attempts


INSIDE = {("atif", "harbor"), ("swe-bench", "mini-swe-agent"), ("miles", "slime")}
"""(format, other): the other's folders hold files of the format too."""


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_another_format_is_refused_and_its_format_named(
    form: str, tmp_path: Path
) -> None:
    for other in FORMS:
        if other != form and (form, other) not in INSIDE:
            message = refused(form, put_any(other, tmp_path / other))
            assert re.search(rf"\(it looks like .*{other}", message), message


@pytest.mark.parametrize("form", FORMS)
def test_nothing_and_what_was_cut_off_are_refused_by_name(form: str, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert re.match(r"nothing must (have|hold) ", refused(form, tmp_path / "nothing"))
    folder = put_any(form, tmp_path / "a_run")
    for file in files_in(folder):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2].rstrip(b"\n"))
        message = refused(form, folder)
        assert file.name in message
        assert "looks like" not in message
        file.write_bytes(whole)
    assert read(form, folder)


def test_settings_are_those_that_the_help_tells(tmp_path: Path) -> None:
    for form, told in FORMATS.items():
        names = sorted(each.partition("=")[0] for each in told.settings)
        message = refused(form, put_any(form, tmp_path / form), odd="x")
        assert message == (
            f"--set odd is no setting of this format (settings: {', '.join(names) or 'none'})"
        )
    assert tuple(FORMATS) == FORMS


@pytest.mark.parametrize("form", REWARDED)
def test_a_reward_that_is_no_finite_number_is_none_and_noted(form: str, tmp_path: Path) -> None:
    folder = put_any(form, tmp_path / "a_run", good=math.nan, bad=0.5)
    run = read(form, folder)[0]
    values = [d.fields["value"] for d in run.drafts() if d.name == "reward_assigned"]
    assert values[:2] == [None, 0.5]
    assert any("the reward must be a finite number, got nan" in note for note in run.notes)
    check(run, run.drafts())


@pytest.mark.parametrize("form", REWARDED)
def test_a_reward_of_another_type_has_its_place(form: str, tmp_path: Path) -> None:
    message = refused(form, put_any(form, tmp_path / "a_run", good="high"))
    assert re.search(r'#/[^ ]*(score|reward) must be a number, got "high"$', message), message


@pytest.mark.parametrize("form", [each for each in FORMS if each not in ("atif", "slime")])
def test_groups_of_unequal_size_keep_their_sizes(form: str, tmp_path: Path) -> None:
    run = read(form, put_any(form, tmp_path / "a_run"))[0]
    due = [1, 1] if form in ("mini-swe-agent", "swe-bench") else [1, 2]
    assert sorted(len(group.slots) for group in run.groups.values() if group.attempts) == due
    declared = run.drafts()[0].fields["attempts_per_task"]
    assert declared == (1 if due == [1, 1] else None)


NOT_ONE_VALID: dict[str, Callable[[Path], object]] = {
    "terminal-bench": lambda folder: put_results(
        folder,
        [a_bench_trial("a", None, "parse_error"), a_bench_trial("a", None, "test_timeout", 1)],
    ),
    "harbor": lambda folder: put_job(folder, [a_trial("a", 0, None, "RuntimeError", 1)]),
    "mini-swe-agent": lambda folder: put_run(folder, [], [{"CalledProcessError": ["a"]}]),
    "swe-bench": lambda folder: put(folder / "m.run.json", a_report(error=["a"])),
    "miles": lambda folder: put_dump(
        folder, "eval_0.pt", [a_sample(0, 0, None, status="failed"), a_sample(1, 0, None)]
    ),
    "prime-rl": lambda folder: put_lines(folder, [an_episode(1, [BROKEN], run=None)]),
}


@pytest.mark.parametrize("form", NOT_ONE_VALID)
def test_a_task_without_a_valid_attempt_has_no_pass_rate_and_is_named(
    form: str, tmp_path: Path, sqlite_url: str
) -> None:
    NOT_ONE_VALID[form](tmp_path / "a_run")
    said = imported(form, tmp_path / "a_run", sqlite_url)
    assert said.status == 0, said
    query = "SELECT pass_at_1_pooled, valid, len(tasks_without_valid) FROM pass_at_1"
    assert booked(sqlite_url, tmp_path, query) == [(None, 0, 1)]


WRONG = [None, 7, -1, 0.5, math.inf, math.nan, 1e300, "x", "", True, [], {}, [1], {"a": 1},
         {"a": 1, "b": 0}, "2026-01-01T00:00:00", 10**30, ["x", None], "\ud800"]  # fmt: skip


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places_in(inner)


def files_in(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


def damaged(file: Path, data: st.DataObject) -> bytes:
    """What a file holds, cut off, with other bytes or with other values of its JSON."""
    whole = file.read_bytes()
    how = data.draw(st.sampled_from(["cut", "bytes", "values"]))
    if how == "cut":
        return whole[: data.draw(st.integers(0, len(whole) - 1))]
    if how == "values" and file.suffix in (".json", ".jsonl"):
        rows = [json.loads(each) for each in whole.splitlines()]
        for _ in range(data.draw(st.integers(1, 3))):
            container, key = data.draw(st.sampled_from(list(places_in(rows))))
            container[key] = copy.deepcopy(data.draw(st.sampled_from(WRONG)))
        return "".join(json.dumps(each) + "\n" for each in rows).encode()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    return bytes(changed)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(ANY_SPEED, max_examples=25)
def test_whatever_a_file_holds_it_is_read_or_refused_with_its_place(
    form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = put_any(form, tmp_path_factory.mktemp("any") / "a_run")
    file = data.draw(st.sampled_from(files_in(folder)))
    file.write_bytes(damaged(file, data))
    with contextlib.suppress(BadImport):  # and no other exception
        for run in read_runs(form, folder, Options()):
            check(run, run.drafts())
