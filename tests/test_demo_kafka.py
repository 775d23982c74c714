"""The demo, shortened, on a real Kafka: it learns, whatever is killed; each fault is accounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo_accounts import check_accounts, check_faults, check_steps
from tests.demos import SHORT, STEPS, Start

pytestmark = [
    pytest.mark.engine,
    pytest.mark.trainer,
    pytest.mark.sandboxes,
    pytest.mark.fault,
    pytest.mark.kafka,
    pytest.mark.timeout(1800),
]


def test_on_kafka_it_learns_the_same_with_the_broker_and_the_assembler_killed(
    tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "demo"
    demo = start(folder, *SHORT, "--log", "kafka")
    demo.wait_for(lambda: demo.steps() >= 1)
    demo.kill("kafka")
    demo.wait_for(lambda: demo.steps() >= 3)
    demo.kill("assembler")
    found = demo.result()
    check_accounts(found)
    check_faults(folder)
    check_steps(folder, found, STEPS)
    assert {"kafka", "assembler"} <= found["deaths"].keys()
