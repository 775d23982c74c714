"""The demo with each of its parts killed, and with all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo_accounts import check_accounts
from tests.demos import SHORT, Start, is_alive
from tests.recorded import eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.trainer,
    pytest.mark.sandboxes,
    pytest.mark.fault,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]
PARTS = ("engine", "sandboxes", "projector", "assembler", "trainer", "rollout")


@pytest.mark.parametrize("part", [*PARTS, "evaluation"])
def test_any_part_may_be_killed(part: str, tmp_path: Path, start: Start) -> None:
    demo = start(tmp_path / "demo", *SHORT)
    if part != "evaluation":
        demo.wait_for(lambda: demo.steps() >= 2)
    demo.kill(part)
    found = demo.result()
    check_accounts(found)
    assert found["deaths"][part] >= 1


def test_parts_die_with_a_demo_that_is_killed_and_it_goes_on(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "demo"
    demo = start(folder, *SHORT)
    demo.wait_for(lambda: demo.steps() >= 2)
    pids = list(demo.pids().values())
    demo.kill_supervisor()
    eventually(lambda: not any(map(is_alive, pids)), 10.0)
    check_accounts(start(folder, "--resume").result())
