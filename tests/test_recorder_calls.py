"""A recorder's calls: what they record, and what a bad one costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ledger.avro import decode
from ledger.facts import FACTS
from ledger.log import LogError
from ledger.open_log import open_log
from ledger.recorder import Recorder
from ledger.recording.calls import OWN_FACTS
from ledger.tokens import Tokens, unpack
from tests.builders import a_fact, an_id, fields_of, plain
from tests.recorded import (
    GROUP,
    IDS,
    RUN,
    TRAJECTORY,
    Make,
    check_numbers,
    eventually,
    facts_in,
    of,
    values_in,
)


def test_each_call_records_what_was_said(log_url: str, make: Make) -> None:
    said = {
        FACTS[name].__name__: (name, a_fact(name)) for name in sorted(set(FACTS) - set(OWN_FACTS))
    }
    recorder = make(log_url)
    for name, fact in said.values():
        getattr(recorder, name)(**fields_of(fact))
    assert recorder.close()
    facts = facts_in(log_url)
    assert check_numbers(facts) == {recorder.incarnation: len(said) + 2}
    assert {fact.producer for fact in facts} == {"test"}
    found = {type(fact).__name__: fact for fact in facts}
    assert sorted(found) == sorted([*said, "ProducerAlive", "ProducerClosed"])
    for kind, (_, fact) in said.items():
        assert plain(fields_of(found[kind])) == plain(fields_of(fact))


def test_a_payload_is_named_by_the_turn_that_it_came_with(log_url: str, make: Make) -> None:
    with make(log_url) as recorder:
        recorder.turn_completed(**IDS, turn_no=3, tokens=Tokens([7, 8, 9], [0, 1, 1], [0, -1, -2]))
    (turn,) = of(facts_in(log_url), "TurnCompleted")
    with open_log(log_url) as log:
        (payload,) = map(decode, values_in(log, "tokens"))
    digest = "adf4ade2eb55657bd6b879a7375145713d0430db765c3fbd311964fef93240c9"
    assert (turn.turn_no, turn.tokens_sha256, payload.sha256) == (3, digest, digest)
    assert (payload.group_id, payload.trajectory_id, payload.turn_no) == (GROUP, TRAJECTORY, 3)
    assert unpack(payload) == Tokens([7, 8, 9], [0, 1, 1], [0.0, -1.0, -2.0])


def test_bind_fills_in_what_a_fact_has_and_a_calls_own_value_wins(
    sqlite_url: str, make: Make
) -> None:
    other = an_id("other")
    with make(sqlite_url) as recorder:
        group = recorder.bind(group_id=GROUP, task_id="django-1", slot=9)
        attempt = group.bind(slot=2, trajectory_id=TRAJECTORY)
        group.group_opened(expected_size=8)
        attempt.trajectory_started()
        attempt.turn_completed(turn_no=0, group_id=other)
        attempt.engine_sampled(engine="e0")
    facts = facts_in(sqlite_url)
    (opened,) = of(facts, "GroupOpened")
    assert (opened.group_id, opened.task_id, opened.expected_size) == (GROUP, "django-1", 8)
    (started,) = of(facts, "TrajectoryStarted")
    assert (started.group_id, started.slot, started.trajectory_id, started.task_id) == (
        GROUP,
        2,
        TRAJECTORY,
        "django-1",
    )
    (turn,) = of(facts, "TurnCompleted")
    assert (turn.group_id, turn.slot) == (other, 2)
    assert len(of(facts, "EngineSampled")) == 1


def test_a_bound_name_that_no_fact_has_is_refused_with_the_facts(
    sqlite_url: str, make: Make
) -> None:
    recorder = make(sqlite_url)
    recorder.bind(grup_id=GROUP).turn_completed(**IDS, turn_no=0)
    assert not recorder.close()
    (lost,) = of(facts_in(sqlite_url), "ProducerLost")
    assert "turn_completed has no field grup_id" in lost.detail.head


class Evil:
    """What no encoder expects."""

    def __repr__(self) -> str:
        raise SystemExit("printed")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = object.__hash__

    @property
    def __class__(self) -> type:
        raise KeyError("asked")


BAD_CALLS: list[tuple[str, Callable[[Recorder], None], str]] = [
    ("unknown field", lambda r: r.turn_completed(**IDS, turn_no=1, tok=1), "no field tok"),
    ("wrong type", lambda r: r.turn_completed(**IDS, turn_no="1"), "turn_no must be int"),
    ("positional", lambda r: r.turn_completed(1, **IDS, turn_no=1), "no field positional"),
    ("missing field", lambda r: r.turn_completed(**IDS), "turn_no is required"),
    ("self", lambda r: r.turn_completed(**IDS, turn_no=1, **{"self": 2}), "no field self"),
    ("unknown value", lambda r: r.trajectory_finished(**IDS, stop_reason="bored", reward_due=True),
     "stop_reason must be one of submitted"),
    ("surrogate", lambda r: r.turn_completed(**IDS, turn_no=1, engine="\ud800"), "UTF-8"),
    ("naive time", lambda r: r.turn_completed(**IDS, turn_no=1, occurred_at=datetime(2026, 1, 1)),
     "must have a time zone"),
    ("evil", lambda r: r.turn_completed(**IDS, turn_no=Evil()), "turn_completed can't be encoded"),
    ("evil time", lambda r: r.turn_completed(**IDS, turn_no=1, time_quality=Evil()),
     "turn_completed can't be encoded"),
    ("tokens", lambda r: r.turn_completed(**IDS, turn_no=1, tokens=[1, 2]), "must be Tokens"),
    ("no length", lambda r: r.turn_completed(**IDS, turn_no=1, tokens=Tokens(5, [1], [1])),
     "turn_completed"),
    ("a lone length", lambda r: r.turn_completed(**IDS, turn_no=1, tokens=Tokens([5], [], [])),
     "columns of one length"),
    ("object", lambda r: r.run_declared(kind="train", name=object()), "name must be str"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "detail"), [pytest.param(c, d, id=n) for n, c, d in BAD_CALLS])
def test_a_bad_call_raises_nothing_and_is_counted_and_reported(
    call: Callable[[Any], None], detail: str, sqlite_url: str, make: Make
) -> None:
    recorder = make(sqlite_url)
    good = recorder.bind(**IDS)
    for turn_no in range(20):
        good.turn_completed(turn_no=turn_no)
    call(recorder)
    for turn_no in range(20, 40):
        good.turn_completed(turn_no=turn_no)
    assert recorder.flush()
    assert recorder.lost == 1
    facts = facts_in(sqlite_url)
    assert [turn.turn_no for turn in of(facts, "TurnCompleted")] == list(range(40))
    (lost,) = of(facts, "ProducerLost")
    assert (lost.count, lost.reason.value) == (1, "invalid")
    assert detail in lost.detail.head
    check_numbers(facts)
    assert not recorder.close()
    (closed,) = of(facts_in(sqlite_url), "ProducerClosed")
    assert closed.accepted == 41


def test_a_fact_that_is_too_large_is_reported_as_such(sqlite_url: str, make: Make) -> None:
    recorder = make(sqlite_url)
    recorder.run_declared(kind="train", name="r", configuration="x" * 300_000)
    recorder.turn_completed(**IDS, turn_no=0)
    assert recorder.flush()
    facts = facts_in(sqlite_url)
    (lost,) = of(facts, "ProducerLost")
    assert (lost.count, lost.reason.value, lost.first_fact) == (1, "too_large", "run_declared")
    assert len(of(facts, "TurnCompleted")) == 1


def test_a_payload_over_the_logs_limit_is_whole_again_when_it_is_read(
    log_url: str, make: Make
) -> None:
    recorder = make(log_url)
    large = Tokens([1] * 600_000, [1] * 600_000, [0.5] * 600_000)  # 5.4 MB; a record has 4 MiB
    recorder.turn_completed(**IDS, turn_no=0, tokens=large)
    assert recorder.flush()
    assert recorder.lost == 0
    with open_log(log_url) as log:
        parts = [decode(value) for value in values_in(log, "tokens")]
    assert len(parts) > 1
    assert unpack(*parts) == large
    (turn,) = of(facts_in(log_url), "TurnCompleted")
    assert {part.sha256 for part in parts} == {turn.tokens_sha256}


def test_close_is_the_last_fact_and_knows_how_many_there_were(log_url: str, make: Make) -> None:
    recorder = make(log_url)
    for turn_no in range(10):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    recorder.flush()
    recorder.turn_completed(**IDS, turn_no=10)
    recorder.turn_completed(**IDS)
    assert not recorder.close()
    assert not recorder.close()
    facts = facts_in(log_url)
    closed = max(facts, key=lambda fact: fact.producer_seq)
    assert type(closed).__name__ == "ProducerClosed"
    assert closed.accepted == 12
    assert closed.last_seq == closed.producer_seq - 1 == len(facts) - 2
    assert len(of(facts, "ProducerLost")) == 1


def test_pulses_come_in_their_interval_and_count(sqlite_url: str, make: Make) -> None:
    with make(sqlite_url, alive_every_s=0.1) as recorder:
        for turn_no in range(3):
            recorder.turn_completed(**IDS, turn_no=turn_no)
        eventually(lambda: len(of(facts_in(sqlite_url), "ProducerAlive")) >= 4)
    pulses = of(facts_in(sqlite_url), "ProducerAlive")
    assert {pulse.interval_s for pulse in pulses} == {0.1}
    assert [pulse.last_seq for pulse in pulses] == [pulse.producer_seq - 1 for pulse in pulses]
    assert pulses[-1].accepted == 3
    gaps = [b.occurred_at - a.occurred_at for a, b in itertools.pairwise(pulses)]
    assert all(gap.total_seconds() < 0.1 + 0.5 for gap in gaps)


def test_a_fact_waits_for_company_until_somebody_is_in_a_hurry(
    sqlite_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.recording.intake.LINGER_S", 60.0)
    with make(sqlite_url, alive_every_s=60.0) as recorder:
        assert recorder.flush()
        recorder.turn_completed(**IDS, turn_no=0)
        time.sleep(0.3)
        recorder.turn_completed(**IDS, turn_no=1)
        assert of(facts_in(sqlite_url), "TurnCompleted") == []
        recorder.hurry()
        eventually(lambda: len(of(facts_in(sqlite_url), "TurnCompleted")) == 2)


def test_no_pulse_waits_for_the_company_of_facts(
    sqlite_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.recording.intake.LINGER_S", 60.0)
    with make(sqlite_url, alive_every_s=0.2) as recorder:
        recorder.turn_completed(**IDS, turn_no=0)
        eventually(
            lambda: 1 in [each.accepted for each in of(facts_in(sqlite_url), "ProducerAlive")]
        )


def test_a_clock_that_steps_back_changes_times_and_no_order(
    sqlite_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([5_000_000, 3_000_000, 4_000_000, 1_000_000])
    recorder = make(sqlite_url)
    recorder.flush()
    monkeypatch.setattr("ledger.recorder.now_us", lambda: next(times))
    for turn_no in range(4):
        recorder.turn_completed(**IDS, turn_no=turn_no)
    assert recorder.close()
    turns = sorted(of(facts_in(sqlite_url), "TurnCompleted"), key=lambda turn: turn.producer_seq)
    assert [(turn.turn_no, turn.occurred_at) for turn in turns] == [
        (0, datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)),
        (1, datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)),
        (2, datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)),
        (3, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log": "mysql://host/x"}, "log URL must start with sqlite:/// or kafka://"),
        ({"log": "kafka://h/x?partitons=3"}, "unknown Kafka client option 'partitons'"),
        ({"log": "kafka://h/x", "options": {"acks": "0"}}, "'acks' is set by the log itself"),
        ({"run_id": "my-run"}, "producer_alive.run_id must be a lower-case UUID, got 'my-run'"),
        ({"producer": 7}, "producer_alive.producer must be str, got 7"),
        ({"queue_limit": 0}, "queue_limit >= 1"),
        ({"block_s": -1.0}, "block_s >= 0"),
        ({"alive_every_s": 0.0}, "alive_every_s > 0"),
    ],
)
def test_what_no_fact_could_be_recorded_with_is_an_error_at_once(
    changed: dict[str, Any], message: str, sqlite_url: str, tmp_path: Path
) -> None:
    usual = {"log": sqlite_url, "producer": "test", "run_id": RUN, "spool_dir": tmp_path}
    with pytest.raises((LogError, ValueError)) as raised:
        Recorder(**(usual | changed))
    assert message in str(raised.value)
