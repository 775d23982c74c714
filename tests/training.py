"""Runs of a trainer on a toy model: a folder with everything, in this process or in another.

lab = a_lab(tmp_path)                     model, SQLite log, checkpoints
lab.give(3)                               batches 0 to 2, in the log
lab.train(last_step=3)                    one rank, here
lab.run_process("before_save")            another process, which kills itself there
lab.facts("step_completed")               what the log has of it, each fact once
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ledger.avro import decode
from ledger.batch_log import records_of
from ledger.batches import Sample, SampleSpan, TrainingBatch
from ledger.facts import FACTS, Fact
from ledger.open_log import open_log
from ledger.tokens import Tokens, pack
from tests.builders import an_id
from tests.models import VOCAB, a_model
from tests.recorded import values_in

RUN = an_id("run")
ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {"learning_rate": 1e-2, "microbatch_tokens": 64, "checkpoint_every": 1}


def a_sample(number: int, length: int = 12, **fields: Any) -> Sample:
    """Two tokens of prompt, the others sampled by version 0."""
    chance = random.Random(number)
    ids = [chance.randrange(VOCAB) for _ in range(length)]
    mask = [0, 0] + [1] * (length - 2)
    columns = pack(Tokens(ids, mask, [-chance.uniform(3.5, 4.5) * on for on in mask]))
    usual: dict[str, Any] = {
        "group_id": an_id("group", number // 2),
        "trajectory_id": an_id("trajectory", number),
        "slot": number % 2,
        "segment": 0,
        "advantage": 1.0 if number % 2 else -1.0,
        "token_ids": columns[0],
        "loss_mask": columns[1],
        "rollout_logprobs": columns[2],
        "version_spans": [SampleSpan(0, 2, length)],
    }
    return Sample(**(usual | fields))


def a_batch(number: int, **fields: Any) -> TrainingBatch:
    """Four samples of different lengths."""
    usual: dict[str, Any] = {
        "run_id": RUN,
        "batch_id": an_id("batch", number),
        "batch_sha256": f"{number:064x}",
        "policy_version": 0,
        "group_ids": [an_id("group", number)],
        "configuration": "{}",
        "max_token_id": VOCAB - 1,
        "samples": [a_sample(100 * number + each, 10 + 7 * each) for each in range(4)],
    }
    return TrainingBatch(**(usual | fields))


@dataclass
class Lab:
    """Where one run trains."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    published: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(version, step) of each publication in this process; the step is -1 where it was adopted."""

    @property
    def log(self) -> str:
        return f"sqlite:///{self.folder / 'log.db'}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def give(self, count: int, start: int = 0) -> None:
        self.append(*[a_batch(number) for number in range(start, start + count)])

    def append(self, *batches: TrainingBatch) -> None:
        with open_log(self.log) as log:
            for batch in batches:
                log.append("batches", records_of(batch))

    def campaign(self, last_step: int) -> Any:
        from trainer.train import Campaign
        from trainer.training_settings import settings_of

        return Campaign(
            run_id=RUN,
            log=self.log,
            model=self.folder / "model",
            checkpoints=self.checkpoints,
            last_step=last_step,
            settings=settings_of(self.settings, "test"),
            spool=self.folder / "spool",
        )

    def train(
        self, last_step: int, stopped: Callable[[], bool] = lambda: False, publisher: Any = None
    ) -> Any:
        """How far it came."""
        from trainer.train import train

        return train(self.campaign(last_step), stopped, publisher)

    def publisher(self, recorder: Any) -> Publishes:
        """A publisher that keeps its promises, and reaches no engine."""
        return Publishes(recorder, self.folder / "versions", self.published)

    def run_process(self, kill_at: str, last_step: int) -> int:
        """Another process trains; its exit status. `kill_at` is a name in `_POINTS`, with the step
        behind a colon, or empty."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.training", str(self.folder), kill_at, str(last_step),
             json.dumps(self.settings)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode in (0, -9), done.stderr[-3000:]
        return done.returncode

    def facts(self, name: str) -> list[Any]:
        """What readers count: a fact that comes again must be the same but for its recorder."""
        with open_log(self.log) as log:
            found = [decode(value) for value in values_in(log, "events")]
        seen: dict[str, Any] = {}
        for fact in found:
            assert isinstance(fact, Fact)
            said = replace(fact, producer="", incarnation=RUN, producer_seq=0)
            assert seen.setdefault(fact.event_id, said) == said
        return [fact for fact in seen.values() if type(fact) is FACTS[name]]

    def weights(self, step: int | None = None) -> dict[str, Any]:
        """What the newest checkpoint, or that step's, has beside its manifest, by file."""
        import torch

        name = f"step-{step:08}" if step is not None else "step-*"
        folder = max(self.checkpoints.glob(name))
        return {
            path.stem.split("-")[0]: torch.load(path, weights_only=True)
            for path in folder.glob("*.pt")
        }


@dataclass
class Publishes:
    """Names of versions in a folder and facts in the log, as the real one has them."""

    recorder: Any
    folder: Path
    calls: list[tuple[int, int]]

    def __enter__(self) -> Publishes:
        self.folder.mkdir(exist_ok=True)
        return self

    def __exit__(self, *exc: object) -> None: ...

    @property
    def newest(self) -> int | None:
        return max((int(path.name) for path in self.folder.iterdir()), default=None)

    def publish(self, learner: Any, version: int, step: int) -> None:
        del learner
        assert version > (-1 if self.newest is None else self.newest)
        (self.folder / str(version)).touch()
        self.recorder.weights_published(policy_version=version, step=step)
        assert self.recorder.flush()
        self.calls.append((version, step))

    def adopt(self, version: int) -> None:
        if not (self.folder / str(version)).exists():
            raise ValueError(version)
        self.calls.append((version, -1))


def a_lab(folder: Path, **settings: Any) -> Lab:
    """A toy model without weights, so that they are random by the seed, and an empty log."""
    from trainer.architecture import to_hf

    lab = Lab(folder, SETTINGS | settings)
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps(to_hf(a_model(), "float32")))
    open_log(lab.log).close()
    return lab


def same(left: Any, right: Any) -> bool:
    """Whether two states are equal bit by bit."""
    import torch

    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _kill_at(point: str, step: int) -> None:
    """Has this process kill itself at a point of a step."""
    import os
    import signal

    from trainer import checkpoint
    from trainer.desk import Desk
    from trainer.outbox import Outbox

    def before(owner: Any, name: str, due: Callable[..., bool]) -> None:
        original = getattr(owner, name)

        def killed(*args: Any, **kwargs: Any) -> Any:
            if due(*args):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(owner, name, killed)

    steps_held: list[int] = []
    completed = Desk.completed
    Desk.completed = lambda self, was, now, *rest, **more: (  # type: ignore[method-assign]
        steps_held.append(now.step), completed(self, was, now, *rest, **more),
    )[1]  # fmt: skip
    if point == "before_save":  # the optimizer has stepped, and nothing is written
        before(checkpoint, "save", lambda folder, learner, progress, *_: progress.step == step)
    elif point == "before_facts":  # the checkpoint is whole, and nobody has heard of the step
        before(Outbox, "send", lambda *_: step in steps_held)
    elif point == "in_publish":  # the facts are in the log
        before(Publishes, "publish", lambda self, learner, version, made: made == step)
    elif point == "after_publish":
        before(Desk, "take", lambda self, progress, *_: progress.step == step)
    else:
        raise ValueError(point)


def main(folder: str, kill_at: str, last_step: str, settings: str) -> None:
    import torch

    torch.set_num_threads(1)
    if kill_at:
        point, _, step = kill_at.partition(":")
        _kill_at(point, int(step))
    lab = Lab(Path(folder), json.loads(settings))
    lab.train(int(last_step), publisher=lab.publisher)


if __name__ == "__main__":
    main(*sys.argv[1:])
