"""Versions published to the real SGLang server: what it samples from, and what is recorded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
import torch

from deploy.ports import free_port, is_free
from ledger.facts.lists import PauseMode
from ledger.recorder import Recorder
from tests.engine_lab import START_S, EngineLab
from tests.recorded import ROOT, Make, eventually, facts_in, of
from tests.tcp_proxy import Proxy
from trainer import hf_weights
from trainer.architecture import ModelConfig, read_config
from trainer.distributed import Broadcast, buckets
from trainer.engine_keeper import EngineKeeper, Target
from trainer.engines import Engine
from trainer.megatron_settings import MegatronSettings, OptimizerSettings
from trainer.model import Learner, bare, build_learner
from trainer.packing import Sample, pack
from trainer.publish import Publisher
from trainer.publish_settings import PublishSettings
from trainer.ranks import started
from trainer.step import score

pytestmark = [pytest.mark.engine, pytest.mark.trainer, pytest.mark.timeout(600)]

LONG = 400
"""Tokens of a generation that takes seconds."""
SMALL = 20_000
"""Bytes: the tiny model travels in several parts."""


@dataclass
class Bench:
    """A learner, a publisher to one engine, and the log of what it recorded."""

    learner: Learner
    publisher: Publisher
    recorder: Recorder
    log_url: str
    lab: EngineLab

    def facts(self, name: str) -> list[Any]:
        """All facts of a class so far."""
        assert self.recorder.flush(20)
        return of(facts_in(self.log_url), name)

    def version(self) -> str:
        """Of the engine's weights, by its own account."""
        return self.lab.ask("/model_info")["weight_version"]

    def scored(self, prompt: list[int], sampled: list[int], temperature: float) -> list[float]:
        """Logprobs of sampled tokens by the trainer."""
        tokens = prompt + sampled
        sample = Sample(tokens, [1] * len(tokens), [0.0] * len(tokens), 0.0)
        (found,) = score(self.learner, [pack([sample], [0])], temperature=temperature) or []
        return found[len(prompt) - 1 : -1].tolist()

    def check_engine_has_the_learners_weights(self) -> None:
        """Its own samples have the trainer's logprobs, to 4 decimals."""
        for number, temperature in enumerate((1.0, 0.7)):
            prompt = [5 + number, 1]  # in no cache: with in_place that is of the old weights
            answer = generate(self.lab, prompt, 24, temperature)
            theirs = [logprob for logprob, *_ in answer["meta_info"]["output_token_logprobs"]]
            ours = self.scored(prompt, answer["output_ids"], temperature)
            assert theirs == pytest.approx(ours, abs=5e-5)


def generate(lab: EngineLab, prompt: list[int], tokens: int, temperature: float = 1.0) -> Any:
    sampling = {"max_new_tokens": tokens, "temperature": temperature, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    return lab.ask("/generate", body)


def change(learner: Learner, seed: int) -> None:
    """As an optimizer step would: other weights in place of the old ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in bare(learner.model).parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


@pytest.fixture
def benched(engine_lab: EngineLab, make: Make, sqlite_url: str, tmp_path: Path) -> Iterator[Any]:
    """Makes one bench, on the engine's own model unless another is given."""
    recorder = make(sqlite_url)

    @contextmanager
    def bench(
        engine_url: str | None = None,
        config: ModelConfig | None = None,
        start: Path = engine_lab.weights[0],
        **given: Any,
    ) -> Iterator[Bench]:
        weights = None if config else start
        usual: dict[str, Any] = {"engines": (engine_url or engine_lab.url,), "look_every_s": 0.1}
        settings, one = PublishSettings(**(usual | given)), MegatronSettings()
        with started(one, config or read_config(start)) as device:
            model = config or read_config(start)
            learner = build_learner(model, one, OptimizerSettings(), device, weights=weights)
            with Publisher(settings, tmp_path / "exports", recorder) as publisher:
                yield Bench(learner, publisher, recorder, sqlite_url, engine_lab)

    yield bench
    engine_lab.restore()


@dataclass
class Running:
    """Long generations that are under way in an engine."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def wait(self) -> list[dict[str, Any]]:
        """Their answers' meta_info."""
        for thread in self.threads:
            thread.join(60)
        return [answer["meta_info"] for answer in self.answers]


def running(lab: EngineLab, requests: int) -> Running:
    """Starts them, and waits until the engine has sampled for some time."""
    found = Running()

    def ask(number: int) -> None:
        found.answers.append(generate(lab, [3, 1, number], LONG))

    found.threads = [threading.Thread(target=ask, args=(n,)) for n in range(requests)]
    for thread in found.threads:
        thread.start()
    eventually(lambda: lab.running() == requests)
    time.sleep(0.2)
    return found


@pytest.mark.parametrize("method", ["disk", "distributed"])
def test_what_the_engine_samples_has_the_trainers_logprobs(benched: Any, method: str) -> None:
    with benched(method=method, bucket_bytes=SMALL) as bench:
        for version in (1, 2):
            change(bench.learner, version)
            published = bench.publisher.publish(bench.learner, version, step=version)
            assert (published.applied, published.behind) == ((bench.lab.url,), ())
            assert bench.version() == str(version)
            bench.check_engine_has_the_learners_weights()
        second = bench.facts("WeightsPublished")[1]
        assert (second.policy_version, second.method, second.step) == (2, method, 2)
        assert (second.path, second.size_bytes) == (str(published.folder), published.size_bytes)
        assert second.publish_s == published.publish_s > 0
        first, applied = bench.facts("WeightsApplied")
        assert (first.policy_version, applied.policy_version) == (1, 2)
        assert (applied.engine, applied.method) == (bench.lab.url, method)
        assert (applied.success, applied.error_type, applied.error) == (True, None, None)
        assert (applied.pause_mode, applied.cache_flushed) == ("retract", True)
        assert (applied.aborted_requests, applied.carried_requests) == (0, 0)
        assert 0 < applied.apply_s < applied.paused_s < published.switch_s + 1


@pytest.mark.parametrize("method", ["disk", "distributed"])
@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_pause_does_to_running_requests_what_it_is_named_for(
    benched: Any, method: str, mode: str
) -> None:
    with benched(method=method, pause=mode) as bench:
        change(bench.learner, 1)
        asked = running(bench.lab, 3)
        bench.publisher.publish(bench.learner, 7, step=1)
        answers = asked.wait()
        assert len(answers) == 3
        for answer in answers:
            versions = [span["version"] for span in answer["weight_versions"]]
            if mode == "abort":
                assert answer["finish_reason"]["type"] == "abort"
                assert 0 < len(answer["output_token_logprobs"]) < LONG
                assert versions == ["0"]
            else:
                assert len(answer["output_token_logprobs"]) == LONG
                assert versions == ["0", "7"]
                assert answer["num_retractions"] == (1 if mode == "retract" else 0)
        (applied,) = bench.facts("WeightsApplied")
        assert (applied.pause_mode, applied.success) == (mode, True)
        assert applied.cache_flushed == (mode != "in_place")
        in_flight = (applied.aborted_requests, applied.carried_requests)
        assert in_flight == ((3, 0) if mode == "abort" else (0, 3))
        assert applied.paused_s > 0
        bench.check_engine_has_the_learners_weights()


def test_without_a_pause_running_requests_end_under_the_old_weights(benched: Any) -> None:
    with benched(pause="none") as bench:
        change(bench.learner, 1)
        asked = running(bench.lab, 3)
        bench.publisher.publish(bench.learner, 7, step=1)
        for answer in asked.wait():
            assert len(answer["output_token_logprobs"]) == LONG
            assert [span["version"] for span in answer["weight_versions"]] == ["0"]
        (applied,) = bench.facts("WeightsApplied")
        assert (applied.pause_mode, applied.paused_s, applied.cache_flushed) == ("none", None, True)
        assert applied.apply_s > 0.2  # what it waited for them
        bench.check_engine_has_the_learners_weights()


def test_a_load_that_finds_the_cache_in_use_is_asked_for_again(benched: Any) -> None:
    async def load(engine: Engine, folder: Path) -> None:
        await engine.pause(PauseMode.IN_PLACE)  # it keeps its requests, and so their cache
        loading = asyncio.create_task(engine.load(folder, 9, flush_cache=True))
        await asyncio.sleep(0.2)
        await engine.resume()
        await loading
        await engine.close()

    with benched() as bench:
        change(bench.learner, 1)
        folder = bench.publisher.publish(bench.learner, 8, step=1).folder
        asked = running(bench.lab, 2)
        asyncio.run(load(Engine(bench.lab.url, limit_s=60), folder))
        assert bench.version() == "9"
        assert len(asked.wait()) == 2


def test_weights_of_another_shape_never_reach_the_engine(
    benched: Any, engine_lab: EngineLab
) -> None:
    """The server would end itself over them."""
    process = engine_lab.server.status().pid
    theirs = read_config(engine_lab.weights[0])
    ours = {name: getattr(theirs, name) for name in theirs.__slots__} | {"mlp_hidden": 96}
    with benched(config=ModelConfig(**ours)) as bench:
        published = bench.publisher.publish(bench.learner, 1, step=1)
        assert published.behind == (bench.lab.url,)
        time.sleep(0.5)  # looks go on
        (applied,) = bench.facts("WeightsApplied")
        assert (applied.success, applied.error_type) == (False, "WrongCheckpoint")
        assert "mlp_hidden=128" in applied.error.head
        assert (bench.version(), engine_lab.server.status().pid) == ("0", process)
        assert len(generate(bench.lab, [3, 1, 4], 8)["output_ids"]) == 8


def test_an_engine_that_is_away_is_skipped_and_gets_the_newest_when_it_is_back(
    benched: Any, engine_lab: EngineLab
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with benched(engine_url=url) as bench:
        for version in (1, 2):
            change(bench.learner, version)
            published = bench.publisher.publish(bench.learner, version, step=version)
            assert published.behind == (url,)
            assert published.switch_s < 20
        proxy = Proxy(int(engine_lab.url.rpartition(":")[2]))
        proxy.listener.close()
        proxy.listener = create_server(("127.0.0.1", port))
        thread = threading.Thread(target=proxy.serve)
        thread.start()
        try:
            eventually(lambda: bench.version() == "2")
            eventually(lambda: len(bench.facts("WeightsApplied")) == 3)
            bench.check_engine_has_the_learners_weights()
        finally:
            bench.publisher.close()
            proxy.cut()
            thread.join()
        told = [(it.policy_version, it.success) for it in bench.facts("WeightsApplied")]
        assert told == [(1, False), (2, False), (2, True)]
        missed = bench.facts("WeightsApplied")[0]
        assert (missed.error_type, missed.engine) == ("ClientConnectorError", url)
        assert missed.paused_s is None


def test_an_engine_restarted_with_old_weights_is_noticed(
    benched: Any, engine_lab: EngineLab
) -> None:
    with benched(pause="none") as bench:
        change(bench.learner, 1)
        assert bench.publisher.publish(bench.learner, 5, step=1).behind == ()
        try:
            engine_lab.server.kill()
            eventually(lambda: is_free(int(engine_lab.url.rpartition(":")[2])))
            time.sleep(0.5)  # looks find nobody
        finally:
            engine_lab.server.start(START_S)
        eventually(lambda: bench.version() == "5", 60)
        eventually(lambda: len(bench.facts("WeightsApplied")) == 2)
        bench.check_engine_has_the_learners_weights()
        first, again = bench.facts("WeightsApplied")
        assert (first.pause_mode, again.pause_mode) == ("none", "retract")
        assert (first.success, again.success) == (True, True)


def test_an_engine_that_a_killed_trainer_left_paused_gets_whole_weights_and_goes_on(
    benched: Any, engine_lab: EngineLab
) -> None:
    """Its label says version 1, but the trainer may have been killed with half of it sent."""
    with benched() as bench:
        change(bench.learner, 1)
        bench.publisher.publish(bench.learner, 1, step=1)
    engine_lab.update(1, 1)
    asked = running(engine_lab, 2)
    engine_lab.ask("/pause_generation", {"mode": "in_place"})
    with benched() as bench:
        change(bench.learner, 1)
        assert bench.publisher.adopt(1) == (engine_lab.url,)
        assert [answer["num_retractions"] for answer in asked.wait()] == [1, 1]
        bench.check_engine_has_the_learners_weights()


def test_an_engine_that_got_half_of_a_broadcast_loads_the_checkpoint(
    benched: Any, make: Make, tmp_path: Path
) -> None:
    with benched(engines=()) as bench:
        change(bench.learner, 1)
        published = bench.publisher.publish(bench.learner, 1, step=1)
        settings = PublishSettings(engines=(bench.lab.url,), method="distributed")
        keeper = EngineKeeper(Engine(bench.lab.url, limit_s=30), settings, bench.recorder)
        keeper.target = Target(1, published.folder, bench.learner.config)
        tensors = hf_weights.named_tensors(bare(bench.learner.model), bench.learner.config)
        (part, last), *_ = buckets(tensors, SMALL)

        async def half() -> None:
            sending = Broadcast([keeper], settings, gpu=False)
            await sending.open()
            await sending.send(part, last=last)
            assert not (await keeper.engine.look()).ready
            await sending.close()
            await keeper.engine.close()

        assert not last
        asyncio.run(half())
        assert bench.version() == "1"
        bench.check_engine_has_the_learners_weights()
        (applied,) = bench.facts("WeightsApplied")
        assert (applied.method, applied.success) == ("disk", True)


def test_two_tensor_ranks_broadcast_whole_weights(
    benched: Any, engine_lab: EngineLab, sqlite_url: str, tmp_path: Path
) -> None:
    folders = tmp_path / "ranks", tmp_path / "ranks-spool"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "-m", "tests.publish_ranks", engine_lab.url, str(engine_lab.weights[0]),
         str(folders[0]), sqlite_url, str(folders[1])],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    with benched(engines=(), start=folders[0] / "version-00000003") as bench:
        assert bench.version() == "3"
        bench.check_engine_has_the_learners_weights()
        (applied,) = bench.facts("WeightsApplied")
        assert (applied.policy_version, applied.method) == (3, "distributed")
