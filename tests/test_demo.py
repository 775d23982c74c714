"""The demo, shortened: every part of the loop real, interrupted and resumed, and its accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo_accounts import check_accounts, check_steps
from tests.demos import SHORT, STEPS, Start, is_alive

pytestmark = [
    pytest.mark.engine,
    pytest.mark.trainer,
    pytest.mark.sandboxes,
    pytest.mark.fault,
    pytest.mark.timeout(1800),
]


def test_a_demo_that_is_interrupted_goes_on_and_learns(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "demo"
    demo = start(folder, *SHORT)
    demo.wait_for(lambda: demo.steps() >= 2)
    pids = list(demo.pids().values())
    assert len(pids) == 6
    assert demo.interrupt() < 30, "10 s on a machine of its own"
    assert not any(map(is_alive, pids))
    assert "to go on: rollbook demo --resume --dir" in demo.said()
    found = start(folder, "--resume").result()
    check_accounts(found)
    check_steps(folder, found, STEPS)
    assert found["deaths"] == {}
