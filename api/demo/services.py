"""The servers of a demo as child processes: SGLang, sandboxes, Apache Kafka.

Invariant: an engine starts on the newest exported version, with that version as its own. Behind
training nobody would bring one that comes back up to date any more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

from api.demo.plan import Demo
from deploy.engine.command import EngineSettings, command, environment
from deploy.engine.install import has_gpu
from deploy.kafka.broker import Broker, answers
from deploy.ports import HOST
from deploy.supervisor import Child
from producers.local_e2b.launch import KEY_VARIABLE

ENGINE, SANDBOXES, BROKER = "engine", "sandboxes", "kafka"
CONTEXT = 512
"""Tokens that the tiny model takes."""
ENGINE_READY_S = 600.0
"""20 s on two idle cores; a busy machine is no failure."""
VERSION = "version-"
"""As the trainer names its exports, with a number behind it."""
ASK_S = 2.0


def kafka(broker: Broker) -> Child:
    """The broker. Fetches its jars at the first start on a machine."""

    def ready() -> bool:
        bootstrap = broker.status().bootstrap
        return bootstrap is not None and answers(int(bootstrap.rpartition(":")[2]))

    return Child(BROKER, broker.prepared, ready=ready)


def engine(demo: Demo, port: int) -> Child:
    """SGLang, on loopback."""
    gpu = has_gpu()
    kernels = importlib.util.find_spec("sgl_kernel") is not None

    def line() -> list[str]:
        folder, version = newest_version(demo.versions) or (demo.policy, 0)
        # A copy: while it starts, the trainer may remove the export.
        model = demo.path(ENGINE) / f"{VERSION}{version}"
        shutil.copytree(folder, model, dirs_exist_ok=True)
        settings = EngineSettings(
            context_length=CONTEXT,
            model_name="tiny",
            policy_version=version,
            extra=("--log-level=warning",),
        )
        return command(model, port, settings, gpu)

    return Child(
        ENGINE,
        line,
        ready=lambda: _get(f"http://{HOST}:{port}/ready") is not None,
        ready_s=ENGINE_READY_S,
        environment=environment(os.environ, gpu, kernels),
        gentle=False,  # it would sleep for seconds, and has nothing to lose
    )


def sandboxes(demo: Demo, port: int) -> Child:
    """The E2B-compatible server, with its faults."""
    plan = demo.plan
    line = [sys.executable, "-m", "producers.local_e2b", str(demo.path(SANDBOXES))]
    line += ["--host", HOST, "--port", str(port), "--unsafe"]
    line += ["--slots", str(2 * plan.concurrency), "--seed", str(plan.seed)]
    for rule in plan.faults:
        line += ["--fault", rule]
    return Child(
        SANDBOXES,
        lambda: line,
        ready=lambda: _listens(port),
        environment={KEY_VARIABLE: ""},  # it takes any key
    )


def newest_version(folder: Path) -> tuple[Path, int] | None:
    """The export with the highest number, as the trainer names them; null: there is none."""
    found = [
        (each, int(each.name.removeprefix(VERSION))) for each in folder.glob(f"{VERSION}[0-9]*")
    ]
    return max(found, key=lambda each: each[1], default=None)


def engine_version(url: str) -> int | None:
    """The policy version that an engine has; null: it doesn't say."""
    told = _get(f"{url}/model_info")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(json.loads(told or "")["weight_version"])
    return None


def _get(url: str) -> bytes | None:
    """What is there; null: no good answer."""
    try:
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:
            return answer.read() if answer.status == 200 else None
    except (OSError, HTTPException):  # it may die in the middle of its answer
        return None


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=ASK_S):
        return True
    return False
