"""What the trainer takes of topic `batches`, in which order, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ledger.batch_log import Taken, records_of
from ledger.batches import BatchDamaged, Refusal, SampleSpan
from ledger.log import Record, TopicPartition
from ledger.open_log import open_log
from ledger.tokens import Tokens, pack
from tests.models import VOCAB
from tests.recorded import eventually
from tests.training import RUN, a_batch, a_sample
from trainer.take import BatchLoader, Limits, Loaded, load, step_refusal, with_lags

pytestmark = pytest.mark.trainer

LIMITS = Limits(vocabulary=VOCAB, sample_tokens=64, tokenizer="tok-a")
NOWHERE = {TopicPartition("batches", 0): 1}


def loaded(limits: Limits = LIMITS, **fields: Any) -> Loaded:
    return load(Taken(a_batch(0, **fields), NOWHERE), limits)


def columns(ids: list[int], mask: list[int]) -> dict[str, bytes]:
    token_ids, loss_mask, logprobs = pack(Tokens(ids, mask, [0.0] * len(ids)))
    return {"token_ids": token_ids, "loss_mask": loss_mask, "rollout_logprobs": logprobs}


def why(found: Loaded) -> str | None:
    return found.refused.reason if found.refused is not None else None


def take(url: str, positions: Any, count: int) -> list[Loaded]:
    with open_log(url) as log, BatchLoader(log, RUN, positions, LIMITS) as loader:
        found = [loader.next(10.0) for _ in range(count)]
    assert None not in found
    return [each for each in found if each is not None]


def test_batches_are_taken_in_order_from_a_position(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        for number in range(5):
            log.append("batches", records_of(a_batch(number)))
    found = take(sqlite_url, {}, 5)
    assert [each.batch for each in found] == [a_batch(number) for number in range(5)]
    again = take(sqlite_url, found[2].positions, 2)
    assert [each.batch for each in again] == [a_batch(3), a_batch(4)]


def test_the_next_batch_is_loaded_before_it_is_asked_for(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noticed(taken: Taken, limits: Limits) -> Loaded:
        done.append(taken.batch.batch_id)
        return load(taken, limits)

    monkeypatch.setattr("trainer.take.load", noticed)
    with open_log(sqlite_url) as log, BatchLoader(log, RUN, {}, LIMITS) as loader:
        assert loader.next(0.05) is None
        log.append("batches", records_of(a_batch(0)))
        eventually(lambda: done == [a_batch(0).batch_id])
        assert loader.next(20.0) is not None


def test_a_batch_that_cannot_be_read_stops_the_trainer(sqlite_url: str) -> None:
    with open_log(sqlite_url) as log:
        log.append("batches", [Record(RUN, b"no batch")])
        with (
            BatchLoader(log, RUN, {}, LIMITS) as loader,
            pytest.raises(BatchDamaged, match="batches/0 offset 0"),
        ):
            loader.next(10.0)


def test_samples_are_as_they_were_written() -> None:
    sample = loaded(samples=[a_sample(3, 12)]).samples[0]
    told = a_sample(3, 12).tokens()
    assert list(sample.token_ids) == told.ids
    assert list(sample.loss_mask) == told.loss_mask
    assert list(sample.logprobs) == told.logprobs
    assert sample.advantage == 1.0


def test_lags_are_told_from_the_version_that_the_step_trains_from() -> None:
    spans = [SampleSpan(3, 2, 4), SampleSpan(5, 4, 6), SampleSpan(9, 6, 7)]
    found = loaded(samples=[a_sample(0, 8, version_spans=spans)])
    lags = with_lags(found, 5)[0].lags
    assert lags is not None
    assert np.asarray(lags).tolist() == [-1, -1, 2, 2, 0, 0, -1, -1]


@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"samples": []}, "empty", "has no sample"),
        ({"tokenizer": "tok-b"}, "tokenizer", "tokenizer must be tok-a, got tok-b"),
        ({"vocabulary_size": 65}, "vocabulary", "at most the model's 64, got 65"),
        ({"max_token_id": 64}, "vocabulary", "token ids must be below 64, got 64"),
        ({"samples": [a_sample(0, advantage=math.nan)]}, "nan", "must be finite"),
        ({"samples": [a_sample(0, 65)]}, "too_long", "must have at most 64 tokens, got 65"),
        (
            {"samples": [a_sample(0, **columns([1, 64], [0, 1]))]},
            "vocabulary",
            "must be in [0, 64), got 64",
        ),
        (
            {"samples": [a_sample(0, **columns([1, -1], [0, 1]))]},
            "vocabulary",
            "must be in [0, 64), got -1",
        ),
        # The first token is never scored.
        ({"samples": [a_sample(0, **columns([1, 2], [1, 0]))]}, "masked", "no token that counts"),
        ({"samples": [a_sample(0, **columns([], []))]}, "damaged", "one length above 0"),
        (
            {"samples": [replace(a_sample(0), loss_mask=b"\0\1")]},
            "damaged",
            "got (12, 2, 12)",
        ),
    ],
)
def test_what_no_step_may_train_on_is_refused(
    fields: dict[str, Any], reason: str, detail: str
) -> None:
    found = loaded(**fields)
    assert why(found) == reason
    assert found.refused is not None
    assert detail in found.refused.detail
    assert found.positions == NOWHERE
    assert step_refusal(found, 0, frozenset()) == found.refused


def test_a_tokenizer_that_one_side_does_not_know_is_no_other_tokenizer() -> None:
    assert why(loaded(Limits(VOCAB, 64), tokenizer="tok-b")) is None
    assert why(loaded(LIMITS)) is None


def test_staleness_is_looked_at_when_the_batch_is_taken() -> None:
    found = loaded(max_staleness=2)
    assert step_refusal(found, 2, frozenset()) is None
    refused = step_refusal(found, 3, frozenset())
    assert refused is not None
    assert refused.reason == "stale"
    assert "at most 2 versions older than 3, got version 0" in refused.detail
    assert step_refusal(loaded(max_staleness=None), 99, frozenset()) is None


def test_a_batch_of_an_orphaned_version_is_refused_unless_its_settings_keep_it() -> None:
    samples = [a_sample(0, version_spans=[SampleSpan(7, 2, 12)])]
    dropped = step_refusal(loaded(samples=samples), 6, frozenset({7}))
    assert isinstance(dropped, Refusal)
    assert dropped.reason == "orphaned_version"
    kept = loaded(samples=samples, configuration='{"orphaned": "keep"}')
    assert step_refusal(kept, 6, frozenset({7})) is None
