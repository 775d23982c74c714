"""Installs SGLang's server into the environment that runs this, for the machine that this is.

With a GPU: `pip install sglang`, as its authors mean it, with all its dependencies and the torch
that it asks for, which is another one than the trainer's: an environment of its own is best.
Without: its wheel alone and the plain Python packages that its server imports, beside the torch
that is there (2.13.0 if there is none), be it built for CPU or for CUDA.

Invariant: what is there in the right version is not touched; when nothing is missing pip isn't run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from deploy.engine.bytecode import compiled

HERE = Path(__file__).parent
PLAIN = HERE / "requirements.txt"
NO_DEPS = HERE / "requirements-no-deps.txt"
TORCH = "2.13.0"
"""Goes with the torchvision of `requirements-no-deps.txt`."""
SGLANG = "0.5.23"
STEP_TIMEOUT_S = 1800.0


class EngineServerError(Exception):
    """The engine can't be installed or can't run here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of pip."""

    what: str
    """For people."""
    arguments: tuple[str, ...]
    """Behind `pip install`."""


def install(gpu: bool | None = None, say: Callable[[str], None] = print) -> list[Step]:
    """Install what is missing; returns the steps that were needed, none if all was there.

    `gpu`: whether to install for a GPU; None: whether this machine has one. Takes about three
    minutes and 5.5 GB, most of it for torch. Raises EngineServerError."""
    steps = plan(installed(), has_gpu() if gpu is None else gpu)
    if steps:
        with compiled():
            for step in steps:
                say(f"installing {step.what}")
                _pip(step)
            say("compiling what is installed")
    return steps


def plan(versions: Mapping[str, str], gpu: bool) -> list[Step]:
    """The steps from the `versions` that are there, by normal name. Raises EngineServerError where
    a torch is there that SGLang can't run beside."""
    if gpu:
        if versions.get("sglang") == SGLANG:
            return []
        return [Step(f"sglang {SGLANG} with its dependencies", (f"sglang=={SGLANG}",))]
    steps: list[Step] = []
    torch = versions.get("torch")
    if torch is None:
        steps.append(Step(f"torch {TORCH}", (f"torch=={TORCH}",)))
    elif torch.partition("+")[0] != TORCH:
        raise EngineServerError(
            f"torch must be {TORCH} for an engine without a GPU, got {torch} ({sys.prefix}):"
            " install that, or use another environment"
        )
    if missing := missing_pins(NO_DEPS, versions):
        steps.append(Step(", ".join(missing), ("--no-deps", *missing)))
    if missing := missing_pins(PLAIN, versions):
        steps.append(Step(f"{len(missing)} plain Python packages", tuple(missing)))
    return steps


def missing_pins(file: Path, versions: Mapping[str, str]) -> list[str]:
    """The lines `name==version` of `file` that `versions` doesn't have."""
    pins = [line for line in file.read_text().split("\n") if line and not line.startswith("#")]
    return [pin for pin in pins if _is_missing(pin, versions)]


def installed() -> dict[str, str]:
    """Versions of all distributions in this environment, by normal name; of two of one name the
    one that an import finds (setuptools puts copies of its own behind it on the path)."""
    versions: dict[str, str] = {}
    for each in metadata.distributions():
        versions.setdefault(normal(each.metadata["Name"]), each.version)
    return versions


def has_gpu() -> bool:
    """Whether the NVIDIA driver has a device for this machine."""
    return Path("/dev/nvidiactl").exists() and any(Path("/dev").glob("nvidia[0-9]*"))


def normal(name: str) -> str:
    """A distribution's name as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_missing(pin: str, versions: Mapping[str, str]) -> bool:
    name, _, version = pin.partition("==")
    there = versions.get(normal(name))
    return there is None or there.partition("+")[0] != version


def _pip(step: Step) -> None:
    # pip would compile, too, on one core and all of it; `compiled` does.
    options = ("--quiet", "--no-compile")
    line = [sys.executable, "-m", "pip", "install", *options, *step.arguments]
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=STEP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise EngineServerError(
            f"pip took longer than {STEP_TIMEOUT_S:.0f} s to install {step.what}"
        ) from None
    if run.returncode != 0:
        said = _tail(run.stdout + run.stderr)
        raise EngineServerError(f"pip could not install {step.what} into {sys.prefix}:\n{said}")


def _tail(text: str) -> str:
    lines: Sequence[str] = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-12:])
