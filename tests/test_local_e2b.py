"""The local server through the unmodified e2b SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2b import (
    CommandExitException,
    Sandbox,
)

from producers.local_e2b.launch import LocalE2B
from producers.local_e2b.settings import Limits

LIMITS = Limits(memory_mb=256, cpu_s=2, file_mb=32, processes=40, disk_mb=48)


@pytest.fixture(scope="module", params=["bwrap", "none"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("sandboxes")
    unsafe = request.param == "none"
    each = LocalE2B(folder, isolation=request.param, unsafe=unsafe, limits=LIMITS, slots=8)
    each.start()
    yield each
    each.stop()


def at(server: LocalE2B) -> dict[str, Any]:
    url = server.state()["url"]
    return {"api_url": url, "sandbox_url": url, "api_key": "e2b_any"}


@pytest.fixture
def sandbox(server: LocalE2B) -> Iterator[Sandbox]:
    each = Sandbox.create(timeout=60, **at(server))
    yield each
    each.kill()


def test_a_command_tells_its_output_and_its_exit_code(sandbox: Sandbox) -> None:
    found = sandbox.commands.run("echo out; echo err >&2; echo $A", envs={"A": "1"})
    assert (found.stdout, found.stderr, found.exit_code) == ("out\n1\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo partial; exit 3")
    assert (failed.value.stdout, failed.value.exit_code) == ("partial\n", 3)
