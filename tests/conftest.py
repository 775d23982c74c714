"""Fixtures that several test files use: real Kafka brokers, URLs of both logs, recorders.

`ROLLBOOK_TEST_KAFKA=host:port` names a broker that is there already; else one is started for the
session. A missing Java or Maven is a failure that says what to install, never a skip.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.kafka.broker import Broker
from ledger.recorder import Recorder
from tests.demos import DemoProcess, Start
from tests.engine_lab import EngineLab, started_engine_lab
from tests.kafka_lab import Lab, started_lab
from tests.recorded import RUN, Make
from tests.registry import Registry

SLOW = frozenset(
    [
        "test_assembler_properties",
        "test_assembler_restart",
        "test_cli",
        "test_conservation",
        "test_dispositions",
        "test_engine_server",
        "test_import_harbor",
        "test_import_miles",
        "test_import_mini_swe_agent",
        "test_import_prime_rl",
        "test_import_swe_bench",
        "test_import_terminal_bench",
        "test_import_verl",
        "test_importers",
        "test_one_run",
        "test_page",
        "test_pass_at_1",
        "test_projector",
        "test_recorder_limits",
        "test_recorder_processes",
        "test_replay",
        "test_report_command",
        "test_sandbox_faults",
        "test_sandbox_pool",
        "test_serve",
        "test_serve_as_of",
        "test_serve_schema",
        "test_serve_sql",
        "test_sft_batches",
        "test_simulator",
        "test_spool_owners",
        "test_what_if",
    ]
)
"""Files that take over 5 s."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores it for what it starts in the background, and processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` leaves out."""
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """`host:port` of a broker that lives as long as the session; tests must not stop it."""
    given = os.environ.get("ROLLBOOK_TEST_KAFKA")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="rollbook-test-kafka-") as data_dir:
        broker = Broker(Path(data_dir))
        try:
            yield broker.start()
        finally:
            broker.kill()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A broker that tests may kill or freeze, and leave as they found it."""
    with started_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="session")
def engine_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineLab]:
    """A real SGLang server on a tiny model, that tests leave as they found it."""
    with started_engine_lab(tmp_path_factory.mktemp("engine")) as lab:
        yield lab


@pytest.fixture
def engine_url(engine_lab: EngineLab) -> str:
    """Where a real SGLang server with a tiny model takes requests."""
    return engine_lab.url


@pytest.fixture
def kafka_url(kafka_bootstrap: str) -> str:
    """A Kafka log of three partitions that no other test sees."""
    return f"kafka://{kafka_bootstrap}/t{uuid.uuid4().hex[:12]}?partitions=3"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite log that no other test sees."""
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty log, once for each implementation."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def server() -> Iterator[Registry]:
    """A Schema Registry of its own."""
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, args=(0.01,))
        thread.start()
        yield registry
        registry.shutdown()
        thread.join()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes recorders, and closes those that a failing test leaves open."""
    made: list[Recorder] = []

    def make(url: str, **options: Any) -> Recorder:
        usual = {"producer": "test", "run_id": RUN, "spool_dir": tmp_path / "spool"}
        made.append(Recorder(url, **(usual | options)))
        return made[-1]

    yield make
    for recorder in made:
        recorder.close(1.0)


@pytest.fixture
def away(tmp_path: Path) -> tuple[str, Path]:
    """The URL of a log that is away until its directory is made, and that directory."""
    folder = tmp_path / "away"
    return f"sqlite:///{folder}/log.db", folder


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts demos, and ends those that a failing test leaves."""
    started: list[DemoProcess] = []

    def start(folder: Path, *options: str) -> DemoProcess:
        started.append(DemoProcess(folder, *options))
        return started[-1]

    yield start
    for each in started:
        each.close()
