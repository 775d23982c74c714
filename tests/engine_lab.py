"""A real SGLang server on a tiny model, and what tests ask it past our own client."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.engine.command import EngineSettings
from deploy.engine.server import EngineServer

engine = pytest.mark.engine
VOCABULARY, CONTEXT, KV_TOKENS = 32, 512, 8192
START_S = 240.0
"""Most seconds for a start: a busy machine is no failure."""


@dataclass
class EngineLab:
    """A server that a test may pause and give other weights, and leaves as it found it."""

    server: EngineServer
    url: str
    weights: dict[int, Path]
    """Checkpoints by seed; 0 is what the server starts on."""

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """GET, or POST with a body; the JSON that came back. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprob of each token but the first, given those before it, by the engine."""
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        triples = self.ask("/generate", body)["meta_info"]["input_token_logprobs"]
        return [triple[0] for triple in triples[1:]]

    def update(self, seed: int, version: int, *, flush_cache: bool = True) -> None:
        """What a trainer does: have it load other weights as this policy version."""
        body = {
            "model_path": str(self.weights[seed]),
            "weight_version": str(version),
            "flush_cache": flush_cache,
        }
        assert self.ask("/update_weights_from_disk", body)["success"]

    def restore(self) -> None:
        """Version 0 on its first weights, not paused."""
        self.ask("/continue_generation", {})
        self.ask("/abort_request", {"abort_all": True})
        assert self.wait_idle(20)
        self.update(0, 0)

    def running(self) -> int:
        """Requests that the engine runs or holds in its queue."""
        load = self.ask("/v1/loads")["loads"][0]
        return load["num_running_reqs"] + load["num_waiting_reqs"]

    def steps(self) -> int:
        """Decode steps since its start."""
        return int((self.ask("/v1/loads")["loads"][0]["decode_moments"] or [0])[0])

    def wait_idle(self, within_s: float) -> bool:
        """Whether it has nothing to do within this time."""
        deadline = time.monotonic() + within_s
        while self.running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@contextmanager
def started_engine_lab(folder: Path) -> Iterator[EngineLab]:
    """Fixture `engine_lab` starts one for the session; whoever kills it starts it again."""
    from deploy.engine.tiny_model import write_tiny_qwen3  # needs what `engine install` brings

    weights = {
        seed: write_tiny_qwen3(folder / f"seed-{seed}", seed=seed, context=CONTEXT)
        for seed in (0, 1)
    }
    settings = EngineSettings(kv_tokens=KV_TOKENS, max_running=32, model_name="tiny")
    server = EngineServer(folder / "engine", weights[0], settings)
    try:
        yield EngineLab(server, server.start(START_S), weights)
    finally:
        server.kill()
