"""What a run of mini-swe-agent says of itself: its scope and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from producers.importers import configuration_of, figures
from producers.importers.exit_statuses import ENDED, ExitStatuses
from producers.importers.harness_reports import HarnessReport
from producers.importers.mini_swe_messages import Trajectory
from producers.importers.run import ForeignRun
from producers.importers.sums import sum_of_all, sum_of_known


def declare(run: ForeignRun, trajectories: Sequence[Trajectory]) -> None:
    if not trajectories:
        return
    first = trajectories[0]
    others = sum(each.policy != first.policy for each in trajectories)
    if others:
        run.note(f"{others} trajectories are configured otherwise than {first.row.place}")
    run.declare(
        scaffold=f"mini-swe-agent {first.version}" if first.version else "mini-swe-agent",
        model=first.config.member("model").text("model_name"),
        temperature=first.config.member("model").member("model_kwargs").number("temperature"),
        turn_cap=first.config.member("agent").integer("step_limit") or None,
        configuration=configuration_of(first.config.value),
    )


def claim(
    run: ForeignRun,
    trajectories: Sequence[Trajectory],
    statuses: Sequence[ExitStatuses],
    reports: Sequence[HarnessReport],
) -> None:
    """Figures of a run's files. A report's counts are the run's only where there is one report."""
    place = f"{len(trajectories)} trajectories of {run.name}"
    run.claim("trajectories", len(trajectories), figures.of_outcomes(
        "count(*)", "turns_declared IS NOT NULL"), place)  # fmt: skip
    totals = {
        "api_calls": (sum_of_known(each.api_calls for each in trajectories), figures.CALLS),
        "cost in USD": (sum_of_known(each.cost for each in trajectories), figures.COST_USD),
    }
    for what, (told, query) in totals.items():
        run.claim(what, told, query, f"info.model_stats of {place}")
    told = Counter[str]()
    for each in trajectories:
        told += each.counted
    for what, query in _MESSAGES.items():
        known = told[what] if told["assistant messages"] or query == figures.TURNS else None
        run.claim(what, known, query, f"messages of {place}")
    for status, count in Counter(each.exit_status for each in trajectories).items():
        query = figures.of_outcomes("count(*)", f"foreign_status = {figures.quoted(str(status))}")
        run.claim(f"exit_status {status}", count, query, place)
    ours = {each.instance_id for each in trajectories}
    replaced = sum(
        len(each) - 1
        for start in statuses
        for instance_id, each in start.listed.items()
        if instance_id in ours or each[-1].status not in ENDED
    )
    query = figures.of_attempts("count(replaces)")
    run.claim("attempts that were replaced", replaced, query, "exit_statuses")
    if len(reports) == 1:
        _claim_report(run, reports[0])


def _claim_report(run: ForeignRun, report: HarnessReport) -> None:
    report.claim(run, _REPORTED)
    names = ("unresolved_instances", "empty_patch_instances")
    total = sum_of_all(report.row.integer(name) for name in names)
    run.claim("unresolved, and empty patches", total, figures.FAILED, report.row.place)


_REPORTED = {
    "submitted_instances": figures.of_facts("reward_assigned", "count(*)"),
    "resolved_instances": figures.PASSED,
    "error_instances": figures.of_facts("reward_assigned", "count(*)", "value IS NULL"),
}
_MESSAGES = {
    "assistant messages": figures.TURNS,
    "prompt tokens": figures.PROMPT_TOKENS,
    "cached tokens": figures.CACHED_TOKENS,
    "completion tokens": figures.COMPLETION_TOKENS,
    "tool calls": figures.TOOL_CALLS,
    "tool results": figures.of_facts("tool_call_completed", "count(*)", "exit_code IS NOT NULL"),
}
