"""What holds for every importer: one fact once, also after a kill; any input, or its refusal."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.log import LogUnavailable
from ledger.open_log import open_log
from producers.importers import BadImport, ForeignRun, Options, configuration_of, figures, read_runs
from producers.importers import write as writing
from producers.importers.claims import Claim, Compared
from producers.importers.source import SourceFile
from producers.importers.times import Clock, seconds
from producers.importers.write import check, write
from tests.builders import ANY_SPEED
from tests.foreign import put, read
from tests.foreign_harbor import a_call, a_step, a_trial, an_atif, put_job
from tests.foreign_mini_swe_agent import a_report, a_trajectory, put_run
from tests.foreign_terminal_bench import a_trial as a_bench_trial
from tests.foreign_terminal_bench import put_results
from tests.recorded import check_numbers, facts_in


def put_any(form: str, folder: Path) -> Path:
    """A small run of a format."""
    if form == "terminal-bench":
        return put_results(
            folder, [a_bench_trial("a", True), a_bench_trial("b", None, "parse_error")]
        )
    if form == "mini-swe-agent":
        broken = a_trajectory("b", 1, "Timeout", calls=2)
        put(folder / f"m.{folder.name}.json", a_report(resolved=["a"], error=["b"]))
        return put_run(folder, [a_trajectory("a"), broken], [{"Submitted": ["a"]}])
    if form == "harbor":
        trials = [a_trial("a", 0, {"reward": 1.0}), a_trial("b", 0, None, "RuntimeError", 1)]
        job = put_job(folder, trials, {"n_trials": 1, "metrics": [{"mean": 0.5}]})
        steps = [a_step("user"), a_step(tool_calls=[a_call(0, x=1)])]
        put(
            job / trials[0]["trial_name"] / "agent" / "trajectory.json",
            an_atif(steps, (100, 50, 10)),
        )
        return job
    if form == "atif":
        step = a_step(tool_calls=[a_call(0)], observation={"results": [{"content": "x"}]})
        put(folder / "trajectory.json", an_atif([a_step("user"), step], (100, 50, 10)))
        return folder
    put(folder / "m.run.json", a_report(resolved=["a"], unresolved=["b"], incomplete=["c"]))
    return folder


FORMS = ("terminal-bench", "mini-swe-agent", "harbor", "atif", "swe-bench")


@pytest.fixture
def run(tmp_path: Path) -> ForeignRun:
    return read("mini-swe-agent", put_any("mini-swe-agent", tmp_path / "a_run"))[0]


def test_an_import_that_was_killed_is_finished_by_the_next_without_a_fact_twice(
    run: ForeignRun, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK", 4)
    with open_log(sqlite_url) as log:
        append, calls = log.append, iter(range(100))

        def dies(topic: Any, records: Any) -> None:
            if next(calls) == 2:
                raise LogUnavailable("killed")
            append(topic, records)

        monkeypatch.setattr(log, "append", dies)
        with pytest.raises(LogUnavailable):
            write(log, run)
        written = write(log, run)
        assert (written.known, written.new) == (8, len(run.drafts()) - 8)
        assert write(log, run).new == 0
    facts = facts_in(sqlite_url)
    assert sorted(check_numbers(facts).values()) == [8, len(run.drafts()) - 8 + 1]
    assert len({each.event_id for each in facts}) == len(run.drafts()) + 1


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


WRONG = [None, 7, -1, 0.5, math.inf, math.nan, 1e300, "x", "", True, [], {}, [1], {"a": 1},
         {"a": 1, "b": 0}, "2026-01-01T00:00:00", 10**30, ["x", None], "\ud800"]  # fmt: skip


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places_in(inner)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(ANY_SPEED, max_examples=40)
def test_whatever_a_file_holds_it_is_read_or_refused_with_its_place(
    form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = put_any(form, tmp_path_factory.mktemp("any") / "a_run")
    file = data.draw(st.sampled_from(sorted(folder.rglob("*.json"))))
    value = json.loads(file.read_text())
    if data.draw(st.booleans()):
        whole = file.read_text()
        file.write_text(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            found = list(places_in(value))
            if found:
                container, key = data.draw(st.sampled_from(found))
                container[key] = copy.deepcopy(data.draw(st.sampled_from(WRONG)))
        file.write_text(json.dumps(value))
    with contextlib.suppress(BadImport):  # and no other exception
        for run in read_runs(form, folder, Options()):
            check(run, run.drafts())
