"""Steps of the whole trainer, from batches in a log to facts in it: what of them is no work."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trainer_batch import LEARNING_RATE, SIZES, samples
from ledger.avro import decode
from ledger.batch_log import records_of
from ledger.batches import Sample as LoggedSample
from ledger.batches import SampleSpan, TrainingBatch
from ledger.facts import StepCompleted
from ledger.facts.lists import Phase
from ledger.log import EventLog, reached
from ledger.open_log import open_log
from ledger.tokens import Tokens, pack
from trainer.architecture import to_hf
from trainer.packing import Sample
from trainer.train import Campaign, train
from trainer.training_settings import settings_of

WORK = (
    Phase.FORWARD_BACKWARD, Phase.OPTIMIZER, Phase.WAITING, Phase.PUBLISHING, Phase.CHECKPOINT,
)  # fmt: skip
"""All other phases, and what has no name, are the share that is asked for."""


def outside_share(count: int, steps: int) -> tuple[float, int]:
    """Share of the wall time of so many steps outside `WORK`, and the number of steps. The model
    is of the size where computing dominates; a batch has `count` samples."""
    config, run_id = SIZES["compute"], str(uuid.uuid4())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'log.db'}"
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(to_hf(config, "float32")))
        with open_log(url) as log:
            for number in range(steps):
                batch = _batch(run_id, number, samples(config, count, seed=number), config.vocab)
                log.append("batches", records_of(batch))
        campaign = Campaign(
            run_id=run_id,
            log=url,
            model=folder / "model",
            checkpoints=folder / "checkpoints",
            last_step=steps,
            settings=settings_of({"learning_rate": LEARNING_RATE}, "benchmark"),
            spool=folder / "spool",
        )
        train(campaign, lambda: False)
        with open_log(url) as log:
            facts = _steps(log)
    wall_s = sum(fact.wall_s for fact in facts)
    work_s = sum(span.seconds for fact in facts for span in fact.phases if span.phase in WORK)
    return 1 - work_s / wall_s, len(facts)


def _batch(run_id: str, number: int, given: Sequence[Sample], vocab: int) -> TrainingBatch:
    return TrainingBatch(
        run_id=run_id,
        batch_id=str(uuid.uuid4()),
        batch_sha256=f"{number:064x}",
        policy_version=0,
        group_ids=[str(uuid.uuid4())],
        configuration="{}",
        max_token_id=vocab - 1,
        samples=[_logged(slot, sample) for slot, sample in enumerate(given)],
    )


def _logged(slot: int, sample: Sample) -> LoggedSample:
    ids, mask = [int(each) for each in sample.token_ids], [int(each) for each in sample.loss_mask]
    logprobs = [float(each) * on for each, on in zip(sample.logprobs, mask, strict=True)]
    columns = pack(Tokens(ids, mask, logprobs))
    return LoggedSample(
        group_id=str(uuid.uuid4()),
        trajectory_id=str(uuid.uuid4()),
        slot=slot,
        segment=0,
        advantage=sample.advantage,
        token_ids=columns[0],
        loss_mask=columns[1],
        rollout_logprobs=columns[2],
        version_spans=[SampleSpan(0, mask.index(1), len(ids))],
    )


def _steps(log: EventLog) -> list[StepCompleted]:
    found: list[StepCompleted] = []
    ends = log.end_positions("events")
    with log.reader(log.start_positions("events")) as reader:
        while not reached(reader.positions, ends):
            for batch in reader.poll(0.1):
                facts = [decode(value) for value in batch.values]
                found += [fact for fact in facts if isinstance(fact, StepCompleted)]
    return found
