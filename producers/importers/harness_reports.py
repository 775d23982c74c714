"""Reports of the SWE-bench harness: `<model>.<run_id>.json`, and a `report.json` for each instance.

Invariants:

1. resolved is 1, unresolved and an empty patch are 0, and an instance in error has no reward: the
   published percentage counts it as 0, which is the account's business and not the verifier's.
2. An instance that the harness found broken (infra_failure_ids) keeps the reward that the harness
   gave it, beside the reason: its denominators don't change either.
3. An id in two lists that contradict one another is refused.

Read from swebench 5.0.2 (schema_version 2) and real files of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from producers.importers import figures
from producers.importers.run import Attempt, ForeignRun
from producers.importers.source import BadImport, Json, SourceFile
from producers.importers.times import UNKNOWN

VERIFIER = "swebench"
REPORT = "report.json"
"""The harness's verdict on one instance, in a folder that is named after it."""
_VALUES = {"resolved_ids": 1.0, "unresolved_ids": 0.0, "empty_patch_ids": 0.0, "error_ids": None}
_BROKEN = ("infra_failure_ids", "ambiguous_failure_ids")
_COUNTS = {
    "submitted_instances": figures.ATTEMPTS,
    "resolved_instances": figures.PASSED,
    "unresolved_instances": figures.with_status("unresolved"),
    "empty_patch_instances": figures.with_status("empty_patch"),
    "error_instances": figures.with_status("error"),
}


@dataclass(frozen=True, slots=True)
class Tests:
    """How one instance's tests went, by its report.json."""

    passed: int
    failed: int

    @classmethod
    def of(cls, report: Json) -> Tests | None:
        """Null where an instance's report tells of no tests."""
        status = report.members("tests_status").values()
        if not status:
            return None
        return cls(
            *[sum(len(each.items(word)) for each in status) for word in ("success", "failure")]
        )


@dataclass(slots=True)
class HarnessReport:
    """One run report."""

    row: Json
    ids: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """List -> instance ids."""
    tests: dict[str, Tests] = field(default_factory=dict[str, Tests])
    """By instance; of those with a report of their own."""

    @classmethod
    def of(cls, row: Json) -> HarnessReport:
        """Raises BadImport for JSON that is no run report."""
        if not looks_like_report(row):
            raise row.wrong("a run report of the SWE-bench harness, an object with resolved_ids")
        report = cls(row)
        for name in row.object():
            if name.endswith("_ids"):
                items = row.items(name)
                report.ids[name] = {str(each.as_text()) for each in items}
        for one, other in (("resolved_ids", "unresolved_ids"), ("resolved_ids", "error_ids"),
                           ("resolved_ids", "empty_patch_ids")):  # fmt: skip
            if both := report.listed(one) & report.listed(other):
                raise BadImport(
                    f"{row.place}: an instance must be in one of {one} and {other},"
                    f" got {min(both)} in both"
                )
        return report

    def listed(self, name: str) -> set[str]:
        """Ids of a list; none where the report hasn't got it."""
        return self.ids.get(name, set())

    @property
    def submitted(self) -> set[str]:
        """Instances that a prediction was handed in for."""
        return self.listed("submitted_ids") or {
            each for name in _VALUES for each in self.listed(name)
        }

    @property
    def outside(self) -> set[str]:
        """Instances with a prediction that are none of the dataset: the harness never ran them."""
        judged = {each for name in _VALUES for each in self.listed(name)}
        return (
            self.submitted - judged - self.listed("completed_ids") - self.listed("incomplete_ids")
        )

    def status(self, instance_id: str) -> str:
        """The list that says most of an instance, without its `_ids`."""
        for name in (*_VALUES, "incomplete_ids"):
            if instance_id in self.listed(name):
                return name.removesuffix("_ids")
        return "submitted"

    def assign(self, attempt: Attempt, instance_id: str) -> bool:
        """The reward that this report gives an attempt; False if it says nothing of it."""
        found = next((name for name in _VALUES if instance_id in self.listed(name)), None)
        if found is None:
            return False
        reasons = self.row.members("failure_reasons")
        broken = next((name for name in _BROKEN if instance_id in self.listed(name)), None)
        reason = reasons[instance_id].as_text() if instance_id in reasons else None
        error_type = reason or (broken and broken.removesuffix("_ids"))
        if found == "error_ids":
            error_type = error_type or "error_ids"
        tests = self.tests.get(instance_id)
        attempt.reward(
            UNKNOWN,
            self.row.at(found).ref,
            value=_VALUES[found],
            verifier=VERIFIER,
            tests_passed=tests.passed if tests else None,
            tests_failed=tests.failed if tests else None,
            error_type=error_type,
        )
        return True

    def claim(self, run: ForeignRun, queries: dict[str, str] | None = None) -> None:
        """The counts that the report states, against the ledger's."""
        for name, query in (_COUNTS if queries is None else queries).items():
            told = self.row.integer(name)
            run.claim(name, told, query, self.row.at(name).place)
            listed = name.replace("_instances", "_ids")
            if told is not None and listed in self.ids and len(self.ids[listed]) != told:
                run.note(
                    f"{self.row.place}: {name} says {told}, and {listed} has"
                    f" {len(self.ids[listed])}"
                )


def looks_like_report(row: Json) -> bool:
    """Whether a file is a run report."""
    return row.has_array("resolved_ids")


def read_report(path: Path, root: Path) -> HarnessReport:
    """Raises BadImport."""
    return HarnessReport.of(SourceFile.read(path, root).json())


def read_tests(folder: Path, root: Path) -> dict[str, Tests]:
    """Instance -> its tests, where its report.json below a folder of the harness's logs has any."""
    reports = reports_below(folder, root)
    return {name: tests for name, each in reports.items() if (tests := Tests.of(each)) is not None}


def reports_below(folder: Path, root: Path) -> dict[str, Json]:
    """Instance -> its report, from every report.json below a folder. One that was cut short is
    there as an empty report: the harness calls its instance an error, and goes on."""
    found: dict[str, Json] = {}
    for path in sorted(folder.rglob(REPORT)):
        source = SourceFile.read(path, root)
        try:
            found |= source.json().entries()
        except BadImport:
            found[path.parent.name] = Json({}, source)
    return found
