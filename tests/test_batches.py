"""The batch format: from samples to records and back, and what a trainer must not take."""

from __future__ import annotations

import dataclasses
import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ledger.batches
from consumers.assembling.settings import AssemblerSettings
from ledger.avro import decode
from ledger.batch_log import BatchReader, read_batches, records_of
from ledger.batches import (
    BatchChunk,
    BatchDamaged,
    Refusal,
    Sample,
    SampleSpan,
    TrainingBatch,
    join_body,
    refusal,
    split_body,
)
from ledger.facts import VersionSpan
from ledger.log import MAX_RECORD_BYTES, EventLog, Record, TopicPartition, check_sizes
from ledger.open_log import open_log
from ledger.tokens import Tokens, digest, pack
from tests.assembled import RUN, a_group, changed, group_id, the_run, trajectory_id
from tests.builders import ANY_SPEED, an_id
from tests.test_assembler import assemble, write

SPANS = [SampleSpan(3, 1, 2), SampleSpan(4, 2, 3)]


def a_sample(ids: list[int] | None = None, **fields: Any) -> Sample:
    given = ids or [1, 2, 3]
    columns = pack(Tokens(given, [0] + [1] * (len(given) - 1), [0.0] + [-0.25] * (len(given) - 1)))
    usual: dict[str, Any] = {
        "group_id": group_id(0),
        "trajectory_id": trajectory_id(0, 0),
        "slot": 0,
        "segment": 0,
        "advantage": 0.5,
        "token_ids": columns[0],
        "loss_mask": columns[1],
        "rollout_logprobs": columns[2],
        "version_spans": SPANS,
    }
    return Sample(**(usual | fields))


def a_batch(number: int = 0, samples: list[Sample] | None = None, **fields: Any) -> TrainingBatch:
    usual: dict[str, Any] = {
        "run_id": RUN,
        "batch_id": an_id("batch", number),
        "batch_sha256": f"{number:064x}",
        "step": number + 1,
        "policy_version": 4,
        "max_staleness": 2,
        "group_ids": [group_id(0)],
        "configuration": "{}",
        "max_token_id": 3,
        "samples": [a_sample()] if samples is None else samples,
    }
    return TrainingBatch(**(usual | fields))


def append(log: EventLog, *batches: TrainingBatch) -> None:
    for batch in batches:
        log.append("batches", records_of(batch))


def test_batches_come_back_in_order_with_where_to_read_on(log_url: str) -> None:
    other = a_batch(9, run_id=an_id("another run"))
    with open_log(log_url) as log:
        append(log, a_batch(0), other, a_batch(1), a_batch(2))
        taken = list(read_batches(log, RUN))
        assert [each.batch for each in taken] == [a_batch(0), a_batch(1), a_batch(2)]
        assert [each.batch for each in read_batches(log, RUN, taken[0].positions)] == [
            a_batch(1),
            a_batch(2),
        ]
        assert list(read_batches(log, RUN, taken[2].positions)) == []


def test_a_batch_over_the_logs_limit_travels_in_parts(sqlite_url: str) -> None:
    ids = list(range(400_000))
    large = a_batch(0, [a_sample(ids), a_sample(ids, slot=1), a_sample(ids, slot=2)])
    records = records_of(large)
    assert len(records) == 3
    check_sizes("batches", records)
    assert max(len(record.value) for record in records) > 0.99 * MAX_RECORD_BYTES
    with open_log(sqlite_url) as log:
        append(log, large, a_batch(1))
        first, second = read_batches(log, RUN)
    assert first.batch == large
    assert second.batch == a_batch(1)
    assert first.positions == {TopicPartition("batches", 0): 3}


def test_the_same_batch_again_is_passed_over(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log, BatchReader(log, RUN) as reader:
        append(log, a_batch(0), a_batch(0), a_batch(1))
        assert [taken.batch.step for taken in reader.poll(5.0)] == [1, 2]


def test_a_reader_waits_for_the_rest_of_a_batch(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger.batches, "CHUNK_BYTES", 100)
    records = records_of(a_batch(0))
    assert len(records) > 3
    with open_log(sqlite_url) as log, BatchReader(log, RUN) as reader:
        log.append("batches", records[:-1])
        assert reader.poll(5.0) == []
        log.append("batches", records[-1:])
        assert [taken.batch for taken in reader.poll(5.0)] == [a_batch(0)]


def parts_of(batch: TrainingBatch) -> list[BatchChunk]:
    parts = [decode(record.value) for record in records_of(batch)]
    return [part for part in parts if isinstance(part, BatchChunk)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda parts: parts[1:], r"must have chunks 0 to \d, got \[1, 2"),
        (lambda parts: [parts[0], *parts[2:]], r"must have chunks 0 to \d, got \[0, 2"),
        (
            lambda parts: [dataclasses.replace(parts[0], body=b"x" * 100), *parts[1:]],
            "must have digest",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    damage: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger.batches, "CHUNK_BYTES", 100)
    with pytest.raises(BatchDamaged, match=message):
        join_body(damage(parts_of(a_batch(0))))


def test_a_damaged_batch_in_the_log_names_its_place(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        append(log, a_batch(0))
        log.append("batches", [Record(RUN, b"garbage")])
        with pytest.raises(BatchDamaged, match=r"batches/0 offset 1"):
            list(read_batches(log, RUN))


@ANY_SPEED
@given(st.binary(max_size=400), st.integers(1, 90))
def test_any_body_comes_back_from_its_parts(body: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.batches, "CHUNK_BYTES", size)
        parts = split_body(RUN, an_id("batch"), body)
    assert max(len(part.body) for part in parts) <= size
    assert join_body(parts) == body


@pytest.mark.parametrize(
    ("batch", "trains_from", "vocabulary", "reason"),
    [
        (a_batch(), 5, 4, None),
        (a_batch(), 6, None, "stale"),
        (a_batch(max_staleness=None), 60, None, None),
        (a_batch(), None, None, None),
        (a_batch(), 4, 3, "vocabulary"),
        (a_batch(samples=[]), 4, None, "empty"),
        (a_batch(samples=[a_sample(advantage=math.nan)]), 4, None, "nan"),
        (
            a_batch(
                samples=[a_sample(rollout_logprobs=array("f", [0.0, math.nan, -1.0]).tobytes())]
            ),
            4,
            None,
            "nan",
        ),
    ],
)
def test_what_a_trainer_must_not_take(
    batch: TrainingBatch, trains_from: int | None, vocabulary: int | None, reason: str | None
) -> None:
    found = refusal(batch, trains_from, vocabulary)
    assert (None if found is None else found.reason) == reason


def test_a_refusal_says_value_rule_and_place() -> None:
    assert refusal(a_batch(), 6) == Refusal(
        "stale",
        f"tokens of trajectory {trajectory_id(0, 0)} segment 0 must be at most 2 versions older"
        " than 6, got version 3",
    )


# What the assembler packs


def test_segments_of_a_trajectory_are_samples_that_share_its_advantage(sqlite_url: str) -> None:
    told = a_group(0, [1, 0])
    split = [
        dataclasses.replace(each, segment=1, segment_reason="context edited")
        if type(each).__name__ == "TurnCompleted" and each.turn_no == 1 and each.slot == 0
        else each
        for each in told
    ]
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *split])
        assemble(log, AssemblerSettings(groups_per_batch=1))
        ((batch, _),) = read_batches(log, RUN)
    found = [(s.slot, s.segment, len(s), round(s.advantage, 4)) for s in batch.samples]
    assert found == [(0, 0, 5, 0.7071), (0, 1, 5, 0.7071), (1, 0, 10, -0.7071)]
    assert batch.samples[1].version_spans == [SampleSpan(3, 3, 5)]


def test_masked_and_excluded_members_have_no_sample(sqlite_url: str) -> None:
    told = a_group(0, [1, 0, None])
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *told])
        assemble(log, AssemblerSettings(groups_per_batch=1))
        ((batch, _),) = read_batches(log, RUN)
    assert [sample.slot for sample in batch.samples] == [0, 1]


def test_a_trajectory_whose_tokens_come_in_parts_is_put_together(sqlite_url: str) -> None:
    ids = list(range(900_000))
    columns = pack(Tokens(ids, [0] + [1] * 899_999, [0.0] + [-0.5] * 899_999))
    told = a_group(0, [1, 0], turns=1)
    first = next(each for each in told if type(each).__name__ == "TurnTokens")
    large = []
    for chunk in range(3):
        low, high = 400_000 * chunk, min(400_000 * (chunk + 1), 900_000)
        large += changed(
            [first],
            type(first),
            sha256=digest(columns),
            token_ids=columns[0][4 * low : 4 * high],
            loss_mask=columns[1][low:high],
            logprobs=columns[2][4 * low : 4 * high],
            chunk=chunk,
            chunks=3,
        )
    turn = next(each for each in told if type(each).__name__ == "TurnCompleted")
    spans = [VersionSpan(2, 0, 99_999), VersionSpan(3, 99_999, 899_999)]
    renamed = dataclasses.replace(
        turn, tokens_sha256=digest(columns), completion_tokens=899_999, version_spans=spans
    )
    told = [renamed if each is turn else each for each in told if each is not first]
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), large[2], large[0], *told])
        assert assemble(log, AssemblerSettings(groups_per_batch=1)).done.batches == 0
        write(log, [large[1]])
        assert assemble(log, AssemblerSettings(groups_per_batch=1)).done.batches == 1
        ((batch, _),) = read_batches(log, RUN)
    assert batch.samples[0].columns == columns
    assert batch.samples[0].version_spans == [
        SampleSpan(2, 1, 100_000),
        SampleSpan(3, 100_000, 900_000),
    ]
    assert batch.max_token_id == 899_999


def test_what_first_k_left_behind_is_published_with_the_batch(sqlite_url: str) -> None:
    settings = AssemblerSettings.of({"groups_per_batch": 1, "over_sampling": "first_k"}, "here")
    longer = a_group(1, [1, 1, 0], turns=4)
    with open_log(sqlite_url) as log:
        write(log, [*the_run(), *a_group(0, [1, 0]), *longer])
        assemble(log, settings)
        ((batch, _),) = read_batches(log, RUN)
    short, long = ("taken", "left") if batch.group_ids == [group_id(0)] else ("left", "taken")
    assert batch.selection[f"{short}_groups"] == batch.selection[f"{long}_groups"] == 1
    assert batch.selection[f"{short}_trajectories"] == 2
    assert batch.selection[f"{short}_mean_tokens"] == 4
    assert batch.selection[f"{long}_mean_tokens"] == 8
    assert batch.selection[f"{short}_mean_reward"] == 0.5
