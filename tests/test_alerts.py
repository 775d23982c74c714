"""Alerts: what stands still first, then what is wrong, what is lost, what could be better."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api.cli import main
from api.settings import AlertSettings
from consumers.assembling.settings import AssemblerSettings
from ledger.accounts.alerts import (
    PROJECTOR_BEHIND,
    WATCHES,
    Measure,
    alerts_of,
    measures,
)
from ledger.book import connect
from ledger.book_sql import VIEWS
from ledger.facts import GroupDecided, TrajectoryFinished, VersionSpan
from ledger.facts.lists import DropReason, GroupDecision, RunKind, StopReason
from ledger.open_log import open_log
from tests.accounts import attempt, facts_of
from tests.assembled import RUN, Desk, Teller, a_group, opened, the_run
from tests.books import append, projected
from tests.builders import AT, a_fact, an_id
from tests.evaluated import an_evaluation, attempt_of, run_of

DEFAULTS = AlertSettings().model_dump()


def wrong_batches() -> list[Any]:
    """One group in which a lost attempt votes, and one that is trained on two versions too late."""
    settings = {"groups_per_batch": 1, "max_untaken_batches": 9, "evidence_wait_s": 0}
    desk = Desk(AssemblerSettings.of(settings, "here")).read(*the_run())
    tell = Teller(seed=1)
    desk.read(opened(tell, 1, 4))
    for slot, ending in enumerate(("passes", "fails", "fails", "lost")):
        desk.read(*attempt(tell, 1, slot, ending))
    desk.decide()
    desk.read(*a_group(2, [1.0, 0.0], version=1))
    (batch,) = [fact for fact in desk.decide() if type(fact).__name__ == "BatchAssembled"]
    trainer = Teller(an_id("trainer"), seed=9)
    desk.read(trainer("step_completed", step=1, batch_id=batch.batch_id, from_version=5))
    return [_all_vote(fact) if isinstance(fact, GroupDecided) else fact for fact in facts_of(desk)]


def _all_vote(fact: GroupDecided) -> GroupDecided:
    members = [replace(each, votes=True, reward=each.reward or 0.0) for each in fact.members]
    return replace(fact, members=members)


def lossy() -> list[Any]:
    """8 of 24 attempts are lost, all of them sampled from version 4."""
    words = {f"t{n}": "i p f i p f p f" if n else "i i i i p f p f" for n in range(3)}
    facts = an_evaluation("lossy", words, kind=RunKind.TRAIN)
    turns = [
        a_fact("turn_completed", only_required=True, group_id=an_id(f"group of lossy/{task}"),
               slot=slot, trajectory_id=attempt_of("lossy", task, slot), turn_no=0,
               version_spans=[VersionSpan(4, 0, 9)])
        for task in words for slot in range(8)
    ]  # fmt: skip
    return facts + [replace(turn, run_id=run_of("lossy")) for turn in turns]


def capped() -> list[Any]:
    """7 of 20 attempts run out of turns."""
    facts = an_evaluation("capped", {"t": " ".join("f" * 20)}, kind=RunKind.TRAIN)
    return [
        replace(fact, stop_reason=StopReason.TURN_CAP)
        if isinstance(fact, TrajectoryFinished) and fact.slot < 7
        else fact
        for fact in facts
    ]


def flat() -> list[Any]:
    """15 of 20 groups have no gradient."""
    decided = a_fact("group_decided", only_required=True, members=[], run_id=run_of("flat"))
    dropped = {"decision": GroupDecision.DROPPED, "drop_reason": DropReason.ZERO_VARIANCE}
    told = {"decision": GroupDecision.BATCH}
    return an_evaluation("flat", {}, kind=RunKind.TRAIN) + [
        replace(decided, group_id=an_id("flat", n), **(told if n % 4 == 0 else dropped))
        for n in range(20)
    ]


def tailed() -> list[Any]:
    """Ten attempts of one step that end at 7.5556 i seconds, the last at 100."""
    facts = an_evaluation("tailed", {"t": " ".join("f" * 10)}, kind=RunKind.TRAIN)
    told: list[Any] = []
    for fact in facts:
        name = type(fact).__name__
        if name == "GroupOpened":
            fact = replace(fact, target_step=1)
        elif name == "TrajectoryStarted":
            fact = replace(fact, occurred_at=AT)
        elif name == "TrajectoryFinished":
            seconds = 100.0 if fact.slot == 9 else 7.5556 * (fact.slot + 1)
            fact = replace(fact, occurred_at=AT + timedelta(seconds=seconds))
        told.append(fact)
    return told


def pulses() -> list[Any]:
    """One producer fell silent, one did and was started anew, one closed."""

    def at(name: str, incarnation: int, seconds: float, fact: str = "producer_alive") -> Any:
        return a_fact(fact, only_required=True, producer=name, run_id=run_of("tailed"),
                      incarnation=an_id(name, incarnation), accepted=1, last_seq=-1,
                      occurred_at=AT + timedelta(seconds=seconds))  # fmt: skip

    return [
        at("agent", 1, 0),
        at("agent", 1, 10),
        at("monitor", 1, 0),
        at("monitor", 2, 200),
        at("trainer", 1, 0),
        at("trainer", 1, 20, "producer_closed"),
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alerts")
    told = [*wrong_batches(), *lossy(), *capped(), *flat(), *tailed(), *pulses()]
    facts = [
        # The facts of the assembler are as it made them.
        fact if fact.run_id == RUN else replace(fact, event_id=an_id("alerts", n))
        for n, fact in enumerate(told)
    ]
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        append(log, facts)
    assert projected(url, folder / "book").facts == len(facts)
    return url


@pytest.fixture(scope="module")
def book(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).with_name("book")


@pytest.fixture(scope="module")
def found(book: Path) -> list[Measure]:
    thresholds = DEFAULTS | {"tail_share": 0.3}
    with connect(book, read_only=True) as connection:
        return measures(connection, AT + timedelta(seconds=210), thresholds)


def test_each_watch_measures_what_its_view_shows(found: list[Measure]) -> None:
    over = alerts_of(found, DEFAULTS | {"tail_share": 0.3})
    near = pytest.approx
    assert [(each.level, each.alert, each.view, each.value, each.out_of) for each in over] == [
        ("liveness", "producer_silent", "producers", 200.0, None),
        ("integrity", "contamination", "contamination", 1.0, 6),
        ("integrity", "lag_over_bound", "policy_lag", 2.0, 2),
        ("loss", "infrastructure_share", "failures", near(8 / 24), 24),
        ("loss", "exclusion_share", "exclusions_by_version", near(8 / 24), 24),
        ("tuning", "tail_share", "rollout_tail_totals", near(0.32, abs=1e-4), None),
        ("tuning", "truncated_share", "stop_reasons", 0.35, 20),
        ("tuning", "zero_variance_share", "group_decisions", 0.75, 20),
    ]
    runs = {each.alert: str(each.run_id) for each in over}
    assert runs["contamination"] == runs["lag_over_bound"] == RUN
    assert runs["infrastructure_share"] == runs["exclusion_share"] == run_of("lossy")
    assert (runs["truncated_share"], runs["zero_variance_share"]) == (
        run_of("capped"), run_of("flat")
    )  # fmt: skip
    subjects = {each.alert: each.subject for each in over}
    assert subjects["producer_silent"] == f"agent, incarnation {an_id('agent', 1)}"
    assert subjects["lag_over_bound"] == "a lag of up to 4, bound 2"
    assert subjects["exclusion_share"] == "policy version 4, rule set 1"


def test_a_bound_on_lag_may_be_set_in_the_batches_stead(book: Path) -> None:
    with connect(book, read_only=True) as connection:
        found = measures(connection, AT, DEFAULTS | {"lag_bound": 4})
    assert "lag_over_bound" not in {each.watch.name for each in found}


def of(name: str, value: float, out_of: int | None = None) -> Measure:
    watch = next(each for each in (PROJECTOR_BEHIND, *WATCHES) if each.name == name)
    return Measure(watch, None, "here", value, out_of)


def test_advice_on_tuning_waits_until_nothing_is_on_fire() -> None:
    calm = alerts_of([of("tail_share", 0.6), of("zero_variance_share", 0.7, 50)], DEFAULTS)
    assert [each.alert for each in calm] == ["tail_share", "zero_variance_share"]
    assert all(each.advice for each in calm)
    fire = alerts_of([of("tail_share", 0.6), of("infrastructure_share", 0.5, 50)], DEFAULTS)
    assert [(each.alert, bool(each.advice)) for each in fire] == [
        ("infrastructure_share", True),
        ("tail_share", False),
    ]


def test_what_stands_still_comes_first_and_the_worst_of_it() -> None:
    found = [
        of("contamination", 1, 8),
        of("producer_silent", 61),
        of("producer_silent", 600),
        of("projector_behind_records", 20_000),
    ]
    over = alerts_of(found, DEFAULTS)
    assert [(each.alert, each.value) for each in over] == [
        ("projector_behind_records", 20_000),
        ("producer_silent", 600),
        ("producer_silent", 61),
        ("contamination", 1),
    ]


def test_at_the_threshold_there_is_no_alert_and_a_share_of_few_is_none() -> None:
    assert alerts_of([of("tail_share", 0.4), of("producer_silent", 60)], DEFAULTS) == []
    assert alerts_of([of("infrastructure_share", 0.9, 19)], DEFAULTS) == []
    assert len(alerts_of([of("infrastructure_share", 0.9, 20)], DEFAULTS)) == 1
    # One vote too many is one too many, however few there are.
    assert len(alerts_of([of("contamination", 1, 2)], DEFAULTS)) == 1


def test_a_threshold_of_null_is_not_watched(book: Path) -> None:
    nothing = dict.fromkeys(DEFAULTS)
    with connect(book, read_only=True) as connection:
        assert measures(connection, AT, nothing) == []
    assert alerts_of([of("tail_share", 0.9)], nothing) == []


def test_every_watch_has_a_threshold_and_a_view() -> None:
    for watch in (PROJECTOR_BEHIND, *WATCHES):
        assert DEFAULTS[watch.name] is not None
        assert watch.view in (*VIEWS, "positions")


Rollbook = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rollbook(
    book: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Rollbook:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, settings: str = "") -> tuple[int, str, str]:
        (tmp_path / "rollbook.toml").write_text(settings)
        monkeypatch.setattr(
            sys, "argv", ["rollbook", "alerts", "--book", str(book), "--at", "2026-01-02T03:07:00",
                          *arguments, "--format", "json"]
        )  # fmt: skip
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *capsys.readouterr()

    return run


CALM = "\n".join(f"{watch.name} = 1000000" for watch in WATCHES)


def test_the_command_exits_1_on_a_finding_and_0_without(rollbook: Rollbook) -> None:
    status, out, errors = rollbook()
    assert status == 1
    (first, *_) = json.loads(out)
    assert first["alert"] == "producer_silent"
    assert (first["value"], first["threshold"]) == (pytest.approx(165), 60.0)
    assert "over their threshold; how far the book is behind needs --log" in errors
    status, out, _ = rollbook(settings=f"[alerts]\n{CALM}")
    assert (status, json.loads(out)) == (0, [])


def test_with_the_log_the_book_s_backlog_is_an_alert(rollbook: Rollbook, url: str) -> None:
    settings = f"[alerts]\nprojector_behind_records = 1\n{CALM}"
    assert rollbook("--log", url, settings=settings)[0] == 0
    with open_log(url) as log:
        append(log, [a_fact("producer_alive", seed=n, incarnation=an_id("new")) for n in range(2)])
    status, out, _ = rollbook("--log", url, settings=settings)
    assert status == 1
    assert [(each["alert"], each["value"], each["view"]) for each in json.loads(out)] == [
        ("projector_behind_records", 2.0, "positions")
    ]


def test_one_run_may_be_asked_about(rollbook: Rollbook) -> None:
    status, out, _ = rollbook("--run", "capped")
    assert status == 1
    assert [each["alert"] for each in json.loads(out)] == ["truncated_share"]
    assert json.loads(out)[0]["advice"]


def test_an_unknown_threshold_is_bad_input(rollbook: Rollbook) -> None:
    status, _, errors = rollbook(settings="[alerts]\ntail_shar = 0.3\n")
    assert status == 2
    assert "alerts.tail_shar: Extra inputs are not permitted" in errors
