"""The SQL that a book is made of: its tables and views, each in an .sql file of this package."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from ledger.avro import wire_types

VIEWS = (
    "facts",
    "sequence_holes",
    "producers",
    "opened_groups",
    "group_decisions",
    "members",
    "dispositions",
    "slot_balance",
    "scopes",
    "runs",
    "tasks",
    "turns",
    "tool_calls",
    "sandboxes",
    "trajectories",
    "steps",
    "resource_spans",
    "downtime",
    "step_time",
    "step_time_totals",
    "throughput",
    "step_attempts",
    "rollout_quantiles",
    "rollout_tail",
    "rollout_tail_totals",
    "single_sequence",
    "low_occupancy",
    "stragglers",
    "engine_minutes",
    "capacity",
    "runaway_contexts",
    "context_growth",
    "stop_reasons",
    "weight_updates",
    "groups",
    "batches",
    "policy_versions",
    "timeline",
    "evaluations",
    "slot_outcomes",
    "task_outcomes",
    "pass_at_1",
    "pass_at_k",
    "book_problems",
    "broken_in_runs",
    "broken_across_runs",
    "conservation",
    "contaminated_votes",
    "contamination",
    "fabricated_zero",
    "false_exclusion",
    "judgements",
    "failure_counts",
    "gpu_spans",
    "gpu_shares",
    "failures",
    "failure_hazard",
    "drop_group_cost",
    "sandbox_uses",
    "sandbox_times",
    "sandbox_start",
    "sandbox_setup",
    "verify_time",
    "tunnel_overhead",
    "trained_batches",
    "trajectory_uses",
    "policy_lag",
    "selection",
    "exclusions_by_version",
    "data_used",
    "dataset_use",
    "waste",
)
"""Views in `ledger/views/`, each after those that it selects from."""


@cache
def sql_file(name: str) -> str:
    """The text of an .sql file of this package."""
    return resources.files("ledger").joinpath(name).read_text()


@cache
def book_hash() -> str:
    """Changes with whatever would make a rebuilt book differ from this one."""
    digest = hashlib.sha256()
    made_by = ("tables.sql", "book.sql", "producer_numbers.sql")
    for name in (*made_by, *(f"views/{view}.sql" for view in VIEWS)):
        digest.update(sql_file(name).encode())
    for wire in wire_types().values():
        digest.update(wire.header)
    return digest.hexdigest()
