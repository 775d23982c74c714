"""One rank of a trainer that publishes one version to an engine by broadcast; run under torchrun.

Arguments: the engine's URL, the model's folder, a folder for exports, a log's URL, a spool folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ledger.recorder import Recorder
from tests.recorded import RUN
from trainer.architecture import read_config
from trainer.megatron_settings import MegatronSettings, OptimizerSettings
from trainer.model import bare, build_learner
from trainer.publish import Publisher
from trainer.publish_settings import PublishSettings
from trainer.ranks import started


def main(engine: str, model: str, exports: str, log: str, spool: str) -> None:
    """Publishes version 3 of weights that no other rank has changed in the same way."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    first = dist.get_rank() == 0
    recorder = Recorder(log, producer="trainer", run_id=RUN, spool_dir=spool) if first else None
    config, settings = read_config(Path(model)), MegatronSettings(tensor=2)
    publishing = PublishSettings(engines=(engine,), method="distributed", bucket_bytes=20_000)
    with started(settings, config) as device:
        learner = build_learner(config, settings, OptimizerSettings(), device, weights=Path(model))
        with torch.no_grad():
            for name, parameter in bare(learner.model).named_parameters():
                if "norm" not in name:  # those are the same on both ranks
                    parameter *= 1.1 + 0.1 * dist.get_rank()
        with Publisher(publishing, Path(exports), recorder) as publisher:
            published = publisher.publish(learner, 3, step=3)
            assert (published is not None) == first
    if recorder is not None:
        recorder.close(20)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
