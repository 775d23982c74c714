"""The project itself: who may import whom, what an installation brings, what is packaged."""

from __future__ import annotations

import ast
import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

MAY_IMPORT = {
    "ledger": {"ledger"},
    "producers": {"producers", "ledger"},
    "consumers": {"consumers", "ledger"},
    "trainer": {"trainer", "ledger"},
    "api": {"api", "consumers", "deploy", "ledger", "producers", "trainer"},
    "deploy": {"deploy"},
}
OURS = set(MAY_IMPORT) | {"tests", "benchmarks"}


def imports_of(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_the_arrows_between_packages_hold(package: str) -> None:
    for file in modules(package):
        tops = {name.split(".")[0] for name in imports_of(file)}
        assert tops & OURS <= MAY_IMPORT[package], file
        if package != "trainer":
            assert "torch" not in tops, file


def test_only_one_module_imports_the_kafka_client() -> None:
    users = [
        str(file.relative_to(ROOT))
        for package in MAY_IMPORT
        for file in modules(package)
        if "kafka" in {name.split(".")[0] for name in imports_of(file)}
    ]
    assert users == ["ledger/kafka/client.py"]


def test_modules_are_small() -> None:
    """300 lines a module and 70 a function are the most."""
    for package in MAY_IMPORT:
        for file in modules(package):
            text = file.read_text()
            assert text.count("\n") <= 300, file
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert (node.end_lineno or 0) - node.lineno < 70, f"{file}: {node.name}"


def test_help_needs_no_torch_and_no_kafka_client() -> None:
    script = (
        "import sys, api.cli; from typer.testing import CliRunner;"
        " assert CliRunner().invoke(api.cli.app, ['--help']).exit_code == 0;"
        " print([name for name in ('torch', 'kafka') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_a_light_install_brings_no_torch() -> None:
    heavy = ("torch", "megatron", "sglang", "triton", "transformers", "numpy")
    for requirement in PROJECT["project"]["dependencies"]:
        assert not requirement.startswith(heavy), requirement
    assert set(PROJECT["project"]["optional-dependencies"]) == {"dev", "trainer"}


def test_every_package_is_listed() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    packages = {*MAY_IMPORT, "schemas"}
    found = {
        name.rpartition("/")[0].replace("/", ".")
        for name in tracked()
        if name.partition("/")[0] in packages and not name.endswith("setup.sh")
    }
    assert sorted(found) == sorted(listed)


def test_the_wheel_has_exactly_the_files_of_its_packages(tmp_path: Path) -> None:
    packages = [*MAY_IMPORT, "schemas"]
    clean = tmp_path / "clean"  # a build folder of the checkout would be built from, too
    for package in packages:
        if (ROOT / package).exists():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, clean / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clean)
    due = {
        str(file.relative_to(clean))
        for package in packages
        for file in (clean / package).rglob("*")
        if file.is_file() and file.name != "setup.sh"  # sets a checkout up
    }
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(tmp_path), str(clean)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("rollbook-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == due


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "benchmarks/README.md"])
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    names = set(re.findall(r"`([\w./*]+\.(?:py|sql|toml|sh|md))`", (ROOT / document).read_text()))
    files = [f"/{name}" for name in tracked()]
    missing = {name for name in names if not fnmatch.filter(files, f"*/{name}")}
    assert missing == set()


def tracked() -> list[str]:
    """Files of the project, from its root."""
    line = ["git", "ls-files"]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_nothing_names_a_path_of_this_machine_or_a_registry() -> None:
    # /home/user is the home folder inside a sandbox.
    paths = r"(?<![\w.])/(work|root|home)/(?!user\b)\w"
    registries = r"pypi\.org|repo1?\.maven|npmjs"
    forbidden = re.compile(f"{paths}|{registries}")
    for name in tracked():
        if name != "tests/test_project.py":
            text = (ROOT / name).read_text(errors="ignore")
            assert not forbidden.search(text), (name, forbidden.search(text))


def test_the_broker_that_docker_runs_is_the_one_that_tests_run() -> None:
    pom = (ROOT / "deploy" / "kafka" / "pom.xml").read_text()
    version = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([\d.]+)<", pom)
    assert version
    assert f"apache/kafka:{version[1]}\n" in (ROOT / "compose.yaml").read_text()
