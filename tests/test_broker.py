"""The broker that development and tests run: kept over stop and kill -9, alone in its directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kafka import jars
from deploy.kafka.broker import Broker, answers
from deploy.kafka.jars import BrokerError
from ledger.log import Record, RecordBatch
from ledger.open_log import open_log

pytestmark = pytest.mark.kafka


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    yield broker
    broker.kill()


def values(bootstrap: str) -> list[bytes]:
    """All values of `events`, of one partition."""
    batches: list[RecordBatch] = []
    with open_log(f"kafka://{bootstrap}/t?partitions=1") as log:
        end = log.end_positions("events")
        with log.reader(log.start_positions("events")) as reader:
            while any(reader.positions[place] < end[place] for place in end):
                batches += reader.poll(1.0)
    return [value for batch in batches for value in batch.values]


def append(bootstrap: str, value: bytes) -> None:
    with open_log(f"kafka://{bootstrap}/t?partitions=1") as log:
        log.append("events", [Record("key", value)])


def test_data_port_and_cluster_survive_stop_and_kill_9(broker: Broker) -> None:
    bootstrap = broker.start()
    cluster_id = broker.status().cluster_id
    append(bootstrap, b"before the stop")
    broker.stop()
    assert broker.start() == bootstrap
    append(bootstrap, b"before the kill")
    broker.kill()
    assert broker.start() == bootstrap
    assert values(bootstrap) == [b"before the stop", b"before the kill"]
    assert broker.status().cluster_id == cluster_id


def test_status_says_whether_it_runs_and_where(broker: Broker) -> None:
    empty = broker.status()
    assert (empty.running, empty.pid, empty.bootstrap, empty.cluster_id) == (False,) + (None,) * 3
    bootstrap = broker.start()
    running = Broker(broker.data_dir).status()  # another object over the same directory
    assert running.running
    assert running.bootstrap == bootstrap
    assert running.pid is not None
    broker.stop()
    stopped = broker.status()
    assert (stopped.running, stopped.pid, stopped.bootstrap) == (False, None, bootstrap)


def test_starting_a_running_broker_only_says_where_it_is(broker: Broker) -> None:
    bootstrap = broker.start()
    pid = broker.status().pid
    assert Broker(broker.data_dir).start() == bootstrap
    assert broker.status().pid == pid


def test_two_brokers_run_side_by_side(broker: Broker, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other")
    try:
        first, second = broker.start(), other.start()
        assert first != second
        assert broker.status().cluster_id != other.status().cluster_id
        append(first, b"first")
        append(second, b"second")
        other.stop()
        assert values(first) == [b"first"]
    finally:
        other.kill()


def test_a_foreign_process_with_the_remembered_pid_is_left_alone(broker: Broker) -> None:
    broker.data_dir.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as foreign:
        try:
            state = {"pid": foreign.pid, "port": 25_000, "cluster_id": "x"}
            (broker.data_dir / "state.json").write_text(json.dumps(state))
            assert not broker.status().running
            broker.stop()
            broker.kill()
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_a_taken_port_is_named(broker: Broker, tmp_path: Path) -> None:
    port = int(broker.start().rpartition(":")[2])
    with pytest.raises(BrokerError, match=f"port {port} .* is taken by another process"):
        Broker(tmp_path / "other", port=port).start()


def test_a_broker_that_dies_at_its_start_shows_the_end_of_its_log(broker: Broker) -> None:
    broker.settings = {"metric.reporters": "nonsense"}
    with pytest.raises(BrokerError, match=r"ended at its start(.|\n)*nonsense"):
        broker.start()
    assert not broker.status().running


def test_a_port_that_is_no_broker_is_not_ready() -> None:
    assert not answers(1)


def test_without_java_or_maven_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BrokerError, match="install openjdk-17-jre-headless"):
        jars.find_java()
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BrokerError, match="install maven"):
        jars.fetch_jars()


def test_a_java_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BrokerError, match=r"must be at least version 17, got .*11"):
        jars.find_java()
