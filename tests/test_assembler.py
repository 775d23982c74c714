"""The assembler over a log: what it appends, and what it does when it is killed or replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from consumers.assembler import Assembler
from consumers.assembling.settings import AssemblerSettings
from consumers.audit import audit
from ledger.avro import encode, encode_fact, wire_types
from ledger.batch_log import read_batches
from ledger.batches import SampleSpan
from ledger.facts import BatchAssembled, Fact, GroupDecided, ProducerClosed, TrajectoryJudged
from ledger.log import EventLog, Fenced, LogError, LogUnavailable, Positions, Record, Topic
from ledger.open_log import open_log
from ledger.tokens import Tokens, TurnTokens
from tests.assembled import RUN, SETTINGS, Teller, Told, a_group, group_id, the_run, trajectory_id
from tests.books import projected
from tests.recorded import each_once, values_in


def write(log: EventLog, told: Iterable[Told]) -> None:
    """Append what producers tell, payloads before the facts that name them."""
    for each in told:
        if isinstance(each, TurnTokens):
            wire = wire_types()["turn_tokens"]
            fields = {name: getattr(each, name) for name in each.__dataclass_fields__}
            log.append("tokens", [Record(each.group_id, encode(wire, wire.check.datum(fields)))])
        else:
            key = getattr(each, "group_id", each.run_id)
            log.append("events", [Record(key, encode_fact(each))])


def assemble(log: EventLog, settings: AssemblerSettings = SETTINGS) -> Assembler:
    assembler = Assembler(log, RUN, settings)
    assembler.run(threading.Event(), follow=False)
    return assembler


def facts(log: EventLog, kind: type) -> list[Any]:
    return [fact for fact in each_once(values_in(log, "events")) if isinstance(fact, kind)]


def test_groups_become_a_batch_that_the_trainer_can_take(log_url: str) -> None:
    with open_log(log_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *a_group(1, [1, 1]), *a_group(2, [0, 1])])
        done = assemble(log).done
        assert (done.decided, done.dropped, done.batches) == (3, 1, 1)
        (assembled,) = facts(log, BatchAssembled)
        ((batch, positions),) = read_batches(log, RUN)
        assert list(read_batches(log, RUN, positions)) == []
    assert (batch.batch_id, batch.batch_sha256) == (assembled.batch_id, assembled.batch_sha256)
    assert (batch.step, batch.policy_version, batch.model, batch.max_token_id) == (1, 3, "tiny", 11)
    assert (
        sorted(batch.group_ids) == sorted([group_id(0), group_id(2)]) == sorted(assembled.group_ids)
    )
    assert (assembled.lag_min, assembled.lag_max) == (0, 0)
    assert len(batch.samples) == 4
    sample = next(each for each in batch.samples if each.trajectory_id == trajectory_id(2, 1))
    assert sample.tokens() == Tokens(
        [1, 2, 10, 5, 6, 1, 2, 11, 5, 6],
        [0, 0, 0, 1, 1, 0, 0, 0, 1, 1],
        [0.0, 0.0, 0.0, -0.5, pytest.approx(-0.21), 0.0, 0.0, 0.0, -0.5, pytest.approx(-0.211)],  # type: ignore[list-item]
    )
    assert sample.version_spans == [SampleSpan(3, 3, 5), SampleSpan(3, 8, 10)]
    assert round(sample.advantage, 4) == 0.7071


def test_deciding_again_finds_nothing_to_decide(log_url: str) -> None:
    with open_log(log_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *a_group(1, [1, 0]), *a_group(2, [1, 0])])
        assemble(log)
        decided = facts(log, GroupDecided)
        assert assemble(log).done.decided == 0
        write(log, a_group(3, [1, 0]))
        assert assemble(log).done.batches == 1
        assert [fact for fact in facts(log, GroupDecided) if fact in decided] == decided
        batches = [taken.batch for taken in read_batches(log, RUN)]
    assert [batch.step for batch in batches] == [1, 2]
    taken = [group for batch in batches for group in batch.group_ids]
    assert sorted(taken) == sorted(group_id(number) for number in range(4))


def test_a_restart_reads_from_the_low_water_of_the_newest_batch(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])[:-1]])
        write(log, [*a_group(1, [1, 0]), *a_group(2, [1, 0])])
        assemble(log)
        (assembled,) = facts(log, BatchAssembled)
        write(log, [*a_group(0, [1, 0])[-1:], *a_group(3, [1, 0])])
        assert assemble(log).done.batches == 1
        assert sorted(facts(log, BatchAssembled)[-1].group_ids) == sorted(
            [group_id(0), group_id(3)]
        )
    assert assembled.low_water == {"events/0": 0, "tokens/0": 0}


def test_an_older_assembler_writes_nothing_and_says_why(log_url: str) -> None:
    with open_log(log_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
        errors: list[BaseException] = []
        waiting, stop = threading.Event(), threading.Event()

        def run() -> None:
            try:
                Assembler(log, RUN, SETTINGS).run(stop, follow=True, ready=waiting.set)
            except LogError as error:
                errors.append(error)

        old = threading.Thread(target=run)
        old.start()
        assert waiting.wait(30)
        assemble(log)
        write(log, [*a_group(1, [1, 0])])
        old.join(60)
        stop.set()
        old.join(30)
        assert [type(error) for error in errors] == [Fenced]
        assert "newer" in str(errors[0]) or "exists" in str(errors[0])
        assert len(facts(log, GroupDecided)) == 1
        assert assemble(log).done.batches == 1


def test_a_run_that_is_not_declared_or_of_another_kind_is_refused(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        with pytest.raises(LogError, match="is not declared in this log"):
            assemble(log)
        write(log, [Teller()("run_declared", kind="sft", configuration="{}")])
        with pytest.raises(LogError, match="is an SFT run"):
            assemble(log)


class Unsure:
    """A log whose appends fail behind the transaction, or before it, as told."""

    def __init__(self, log: EventLog, failures: list[str]) -> None:
        self._log = log
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def fenced_writer(self, name: str, timeout_s: float = 30.0) -> Any:
        return UnsureWriter(self._log.fenced_writer(name, timeout_s), self._failures)


class UnsureWriter:
    def __init__(self, writer: Any, failures: list[str]) -> None:
        self._writer = writer
        self._failures = failures

    def append(self, records: Any, timeout_s: float = 30.0) -> None:
        failure = self._failures.pop(0) if self._failures and any(records.values()) else "none"
        if failure != "before":
            self._writer.append(records, timeout_s)
        if failure != "none":
            raise LogUnavailable(f"{failure} the commit")

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize(
    "failures",
    [
        ["none", "before", "none", "none"],
        ["none", "behind", "none", "none"],
        ["none", "before", "behind", "before", "behind", "before"],
        ["behind", "behind", "before", "none", "before", "none"],
    ],
)
def test_an_append_in_doubt_is_neither_lost_nor_repeated(
    log_url: str, tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.assembler.TICK_S", 0.05)
    with open_log(log_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *a_group(1, [1, 0])])
        assemble(Unsure(log, failures))  # type: ignore[arg-type]
        values = values_in(log, "events")
        assert len(values) == len(set(values))
        assert len(facts(log, GroupDecided)) == 2
        assert len(facts(log, BatchAssembled)) == 1
        assert len(values_in(log, "batches")) == 1
        own = [fact for fact in facts(log, Fact) if fact.producer == "assembler"]
        assert sorted(fact.producer_seq for fact in own) == list(range(len(own)))
        assert len(facts(log, ProducerClosed)) == 1


def test_the_audit_finds_no_hole_in_what_assemblers_recorded(
    sqlite_url: str, tmp_path: Path
) -> None:
    import duckdb

    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *a_group(1, [1, 0])])
        assemble(log)
        assemble(log)
    projected(sqlite_url, tmp_path / "book")
    with duckdb.connect(str(tmp_path / "book"), read_only=True) as book:
        findings = [each.detail for each in audit(book) if "producer assembler" in each.detail]
    assert findings == []


def test_the_command_assembles_with_settings_from_the_file_and_the_line(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
    config = tmp_path / "rollbook.toml"
    config.write_text('[assembler]\nalgorithm = "rloo"\ngroups_per_batch = 4\n')
    command = ["assemble", "--run", RUN, "--log", sqlite_url, "--config", str(config)]
    done = CliRunner().invoke(app, [*command, "--set", "groups_per_batch=1"])
    assert (done.exit_code, done.exception) == (0, None)
    assert "1 groups decided, 0 of them dropped, 1 batches" in done.output
    with open_log(sqlite_url) as log:
        ((batch, _),) = read_batches(log, RUN)
    assert sorted(sample.advantage for sample in batch.samples) == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"group_size": 1}, "group_size must be at least 2, got 1 (here)"),
        ({"group_size": 4, "min_valid": 5}, "min_valid must be at most group_size 4, got 5"),
        ({"min_valid": 1}, "min_valid must be at least 2, got 1"),
        ({"algorithm": "ppo"}, "algorithm must be one of grpo, dr_grpo, rloo, got 'ppo' (here)"),
        ({"groups_per_batch": 1.5}, "groups_per_batch must be int, got 1.5"),
        ({"groups_per_batch": 0}, "groups_per_batch must be at least 1, got 0"),
        ({"lease_s": "nan"}, "lease_s must be a number of seconds from 0, got nan"),
        ({"short_batches": "maybe"}, "short_batches must be bool, got 'maybe'"),
        ({"max_untaken_groups": 3}, "max_untaken_groups must be at least 4, got 3"),
        ({"min_vald": 2}, "there is no setting min_vald"),
    ],
)
def test_settings_that_can_not_be_are_refused_by_name(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="here") as caught:
        AssemblerSettings.of(table, "here")
    assert message in str(caught.value)


def test_a_group_whose_payloads_were_removed_is_dropped_and_the_others_go_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.assembling.token_index.TokenIndex.cached", lambda *_: None)
    settings = AssemblerSettings(groups_per_batch=1, max_untaken_batches=1)
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0])])
        assemble(log, settings)
        write(log, a_group(1, [1, 0]))
        assembler = assemble(log, settings)
        assert assembler.done.batches == 0  # no room
        end = log.end_positions("tokens")
        batch = next(read_batches(log, RUN)).batch
        write(log, [Teller(seed=90)("step_completed", step=1, batch_id=batch.batch_id)])
        stuck = Assembler(log, RUN, settings)
        read = stuck._payload

        def removed(found: Any) -> Any:
            log.remove_before(end)
            return read(found)

        monkeypatch.setattr(stuck, "_payload", removed)
        stuck.run(threading.Event(), follow=False)
        last = facts(log, GroupDecided)[-1]
        assert (last.group_id, last.decision, last.drop_reason) == (
            group_id(1),
            "dropped",
            "refused",
        )
        write(log, a_group(2, [1, 0]))
        assert assemble(log, settings).done.batches == 1


class Away:
    """A log that can't be asked where it starts or ends while `down`, but read and written to."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.down = 0
        """How many further questions it doesn't answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def start_positions(self, topic: Topic) -> Positions:
        return self._asked(self._log.start_positions(topic))

    def end_positions(self, topic: Topic) -> Positions:
        return self._asked(self._log.end_positions(topic))

    def _asked(self, answer: Positions) -> Positions:
        if self.down:
            self.down -= 1
            raise LogUnavailable("the broker is away")
        return answer


def test_an_outage_while_payloads_are_fetched_is_waited_for_and_loses_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.assembling.token_index.TokenIndex.cached", lambda *_: None)
    monkeypatch.setattr("consumers.assembler.TICK_S", 0.01)
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *a_group(1, [1, 0])])
        away = Away(log)
        assembler = Assembler(away, RUN, SETTINGS)  # type: ignore[arg-type]
        fetch, outages = assembler._payload, list[str]()

        def payload(found: Any) -> Any:
            if found.batch is not None and len(outages) < 3:
                away.down = 1
            try:
                return fetch(found)
            except LogUnavailable as error:
                outages.append(str(error))
                away.down = 1  # and at the next look at the log's end
                raise

        monkeypatch.setattr(assembler, "_payload", payload)
        assembler.run(threading.Event(), follow=False)
        assert outages == ["the broker is away"] * 3
        (assembled,) = facts(log, BatchAssembled)
        (taken,) = read_batches(log, RUN)
        assert sorted(assembled.group_ids) == sorted([group_id(0), group_id(1)])
        assert taken.batch.batch_sha256 == assembled.batch_sha256
        assert len(facts(log, GroupDecided)) == 2


def test_an_outage_at_the_end_of_the_log_is_waited_for(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.assembler.TICK_S", 0.01)
    with open_log(sqlite_url) as log:
        write(log, the_run())
        away = Away(log)
        assembler = Assembler(away, RUN, SETTINGS)  # type: ignore[arg-type]
        decide, looks = assembler._decide, list[bool]()

        def decided(*given: Any) -> bool:
            looks.append(decide(*given))
            away.down = 1 if len(looks) < 3 else 0
            return looks[-1]

        monkeypatch.setattr(assembler, "_decide", decided)
        assembler.run(threading.Event(), follow=False)
        assert looks == [False] * 3


def test_a_dead_producers_attempt_is_abandoned_while_the_log_is_followed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.assembler.TICK_S", 0.1)
    settings = AssemblerSettings(groups_per_batch=1, lease_s=1.0)
    stop, ready = threading.Event(), threading.Event()
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0, 1])[:-1]])
        assembler = Assembler(log, RUN, settings)
        thread = threading.Thread(target=lambda: assembler.run(stop, follow=True, ready=ready.set))
        thread.start()
        assert ready.wait(30)
        deadline = time.monotonic() + 60
        while assembler.done.batches < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        stop.set()
        thread.join(30)
        (decided,) = facts(log, GroupDecided)
        outcomes = [fact.outcome for fact in facts(log, TrajectoryJudged)]
    assert [member.exclusion_reason for member in decided.members] == [None, None, "infrastructure"]
    assert outcomes == ["completed", "completed", "abandoned"]
