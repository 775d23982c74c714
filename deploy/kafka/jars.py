"""Java and the broker's jars: found, or fetched once from Maven Central by `pom.xml`.

The cache is `~/.cache/rollbook/kafka/<hash of pom.xml>/libs` (`ROLLBOOK_CACHE` names another
folder than `~/.cache/rollbook`). A `libs` folder that exists is complete: jars are copied beside it
and renamed when all are there, under a file lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
JAVA_MIN = 17
JVM_FLAGS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # the optimising compiler costs a second of start-up
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSX",
)
FETCH_TIMEOUT_S = 900.0


class BrokerError(Exception):
    """The broker can't run here; the message says what is missing and what to do."""


def find_java() -> str:
    """Path of a Java of at least version 17: from JAVA_HOME, else from PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise BrokerError(
            f"no java found ({'JAVA_HOME=' + home if home else 'PATH'}):"
            " install openjdk-17-jre-headless"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        raise BrokerError(
            f"java must be at least version {JAVA_MIN}, got {said.splitlines()[:1]} ({java}):"
            " install openjdk-17-jre-headless"
        )
    return java


def cache_dir() -> Path:
    """Folder of the jars of this `pom.xml`; it need not exist."""
    base = os.environ.get("ROLLBOOK_CACHE") or Path.home() / ".cache" / "rollbook"
    return Path(base).absolute() / "kafka" / hashlib.sha256(POM.read_bytes()).hexdigest()[:16]


def fetch_jars() -> Path:
    """The folder of jars, fetched with `mvn` if it isn't there (about 20 s, 45 MB)."""
    libs = cache_dir() / "libs"
    if libs.is_dir():
        return libs
    with file_lock(cache_dir().parent / f"{cache_dir().name}.lock"):
        if not libs.is_dir():
            _fetch(libs)
    return libs


def command(java: str, libs: Path, *args: str, archive: bool = True) -> list[str]:
    """The command line that runs one of Kafka's main classes."""
    shared = _archive_path(java, libs)
    usable = archive and shared.is_file() and shared.stat().st_size > 0
    flags = [f"-XX:SharedArchiveFile={shared}"] if usable else []
    return [java, *JVM_FLAGS, *flags, "-cp", f"{libs}/*", *args]


@contextlib.contextmanager
def file_lock(path: Path) -> Generator[None]:
    """Hold an exclusive lock on `path`; it goes when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def has_archive(java: str, libs: Path) -> bool:
    """Whether `build_archive` has run for this Java and these jars."""
    return _archive_path(java, libs).exists()


def build_archive(java: str, libs: Path, properties: Path) -> None:
    """Dump the classes that a start loads, so that later starts take half as long (3 s -> 1.7 s).

    Runs the broker of `properties` once, for about 10 s. Only an optimisation: when it fails,
    later starts go without."""
    path = _archive_path(java, libs)
    with file_lock(path.with_suffix(".lock")):
        if path.exists():
            return
        new = path.with_suffix(f".{os.getpid()}.new")
        dump = f"-XX:ArchiveClassesAtExit={new}"
        line = command(java, libs, "kafka.Kafka", str(properties), archive=False)
        run = subprocess.Popen(
            [line[0], dump, *line[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(5)  # what is loaded later than that is no part of a start
            run.send_signal(signal.SIGTERM)
            run.wait(60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()
        if new.exists() and run.returncode in (0, 128 + signal.SIGTERM):
            new.rename(path)
        else:
            path.touch()  # an empty file: don't try again at every start


def _archive_path(java: str, libs: Path) -> Path:
    """An archive is good for one build of Java only; another one ignores it."""
    build = Path(java).resolve()
    name = hashlib.sha256(f"{build} {build.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    return libs.parent / f"classes-{name}.jsa"


def _fetch(libs: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise BrokerError(f"no mvn found to fetch the broker's jars into {libs}: install maven")
    libs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libs.parent, prefix="fetch-") as temporary:
        new = Path(temporary, "libs")
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        line = [mvn, "-B", "-q", "-f", str(POM), *goal, f"-DoutputDirectory={new}"]
        try:
            run = subprocess.run(line, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BrokerError(
                f"mvn took longer than {FETCH_TIMEOUT_S:.0f} s to fetch the broker's jars ({POM})"
            ) from None
        if run.returncode != 0 or not new.is_dir():
            tail = "\n".join((run.stdout + run.stderr).strip().splitlines()[-8:])
            raise BrokerError(f"mvn could not fetch the broker's jars ({POM}):\n{tail}")
        new.rename(libs)
