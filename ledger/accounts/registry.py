"""The accounts that a book answers: which view each is, its window, and what it leaves out.

What one row is stands in the view's file, and is read from there (`definition_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.book_sql import sql_file

SHARES = frozenset(
    {
        "pass_at_1_macro",
        "pass_at_1_pooled",
        "pass_at_1_weighted",
        "pass_at_k",
        "pass_hat_k",
        "pass_rate",
        "pass_rate_reweighted",
        "published",
        "coverage",
        "macro_if_missing_failed",
        "macro_if_missing_passed",
        "pooled_if_missing_failed",
        "pooled_if_missing_passed",
        "bootstrap_low",
        "bootstrap_high",
        "clustered_low",
        "clustered_high",
        "with_missing_low",
        "with_missing_high",
        "weighted_bootstrap_low",
        "weighted_bootstrap_high",
    }
)
"""Columns that are parts of one whole, beside those whose name says so."""


@dataclass(frozen=True, slots=True)
class Account:
    """One answer."""

    view: str
    """The view; `name` is the same with dashes."""
    window: str
    """Over which time a row is."""
    excluded: str
    """What is in no row, or not in its figures."""
    order: str
    """Columns to order by."""
    shown: tuple[str, ...] = field(default=())
    """Columns for people, where all of them are too many for a line; empty: all."""

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.view.replace("_", "-")


class UnknownAccount(ValueError):
    """No account has this name; the message names those that there are."""


def find_account(name: str) -> Account:
    """By its name, dashes or underscores alike. Raises UnknownAccount."""
    for account in ACCOUNTS:
        if account.view == name.replace("-", "_"):
            return account
    known = ", ".join(account.name for account in ACCOUNTS)
    raise UnknownAccount(f"an account is one of {known}; got {name!r}")


def definition_of(view: str) -> str:
    """What one row of a view is: the comment that its file opens with."""
    lines: list[str] = []
    for line in sql_file(f"views/{view}.sql").splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines)


def is_share(column: str) -> bool:
    """Whether a column is a part of a whole, which people read in percent."""
    return column in SHARES or "share" in column.split("_")


_STEP = "from the end of the step before, or the trainer's readiness, to the step's end"
_RUN = "the whole run, up to the book's position"
_HOUR = "one hour of the clock, by when it ended"
_NOTHING = "nothing"
_EVALUATION = "from the first start to the last end of the evaluation's attempts"

ACCOUNTS = (
    Account(
        "step_time",
        _STEP,
        "gaps between two lives of the trainer, which are rows of downtime",
        "run_id, started_at, step",
        ("step", "wall_s", "waiting_s", "forward_backward_s", "optimizer_s", "publishing_s",
         "unattributed_s", "rollout_s", "exposed_s", "overlapped_s", "why_slow", "trajectories",
         "truncated_share"),
    ),
    Account("step_time_totals", _RUN, "steps done again count, and are retrained_s", "run_id"),
    Account("downtime", "from the last step of one life to the first of the next", _NOTHING,
            "run_id, started_at"),
    Account("resource_spans", "from one declaration to the next that says something else", _NOTHING,
            "run_id, span"),
    Account(
        "rollout_tail",
        "from the first start to the last end of what was sampled for the step",
        "aborted and abandoned attempts have no end: they are censored, and not the last one",
        "run_id, step, rule_set",
        ("step", "rule_set", "trajectories", "ended", "censored", "t50_s", "t90_s", "t_end_s",
         "tail_share", "failed_tail_s", "late_start_s", "group_wait_s", "trainable",
         "trainable_tail_share"),
    ),
    Account("rollout_tail_totals", _RUN, "steps without a tail_share", "run_id, rule_set"),
    Account("single_sequence", "the rollouts of the step", _NOTHING, "run_id, step, engine"),
    Account("low_occupancy", "one hour of the clock, inside one span of declared resources",
            "time without a declared concurrency has no share", "run_id, span, hour"),
    Account(
        "stragglers",
        "from the attempt's request to its end",
        "attempts that ended before 90% of their step's had",
        "run_id, step, ended_s DESC",
        ("step", "trajectory_id", "state", "stop_reason", "ended_s", "late_start_s", "alive_s",
         "queue_s", "sandbox_start_s", "setup_s", "model_s", "tool_s", "verify_s",
         "unattributed_s", "longest_stage"),
    ),
    Account(
        "throughput",
        "one span of constant declared resources",
        "attempts without a scored, trainable reward are attempted, and not completed",
        "run_id, span, rule_set",
        ("span", "rule_set", "attempted", "completed", "equivalents", "straddled", "wall_s",
         "completed_per_hour", "equivalents_per_hour", "equivalents_per_rollout_hour",
         "equivalents_per_engine_node_hour", "equivalents_per_gpu_hour",
         "generated_tokens_per_s"),
    ),
    Account(
        "failures",
        _RUN,
        "attempts that no rule set judged are trajectories_unjudged",
        "run_id, rule_set, failures DESC",
        ("rule_set", "stage", "class", "blame", "failures", "trajectories_ended", "share_of_tries",
         "share_of_trajectories", "share_of_slots", "seconds", "tokens", "ended_gpu_s"),
    ),
    Account("failure_hazard", _RUN, "failures that were the policy's", "run_id, rule_set, stage"),
    Account("drop_group_cost", _RUN, _NOTHING, "run_id, rule_set, expected_size"),
    Account("sandbox_start", _HOUR, "tries that failed or have no time are not in the quantiles",
            "run_id, hour, backend, template"),
    Account("sandbox_setup", _HOUR, "tries that failed or have no time are not in the quantiles",
            "run_id, hour, backend, template"),
    Account("verify_time", _HOUR, "tries that failed or have no time are not in the quantiles",
            "run_id, hour, backend, template"),
    Account("tunnel_overhead", _HOUR, "calls without both clocks", "run_id, hour, backend"),
    Account(
        "contamination",
        _RUN,
        "attempts that voted and were lost through the policy's own fault",
        "run_id, step, group_id, slot, rule_set",
        ("step", "group_id", "slot", "rule_set", "known", "cause_class", "blame", "reward",
         "advantage", "advantages_with", "advantages_without", "would_be_dropped"),
    ),
    Account("false_exclusion", _RUN, _NOTHING, "run_id, group_id, slot, rule_set"),
    Account("fabricated_zero", _RUN, _NOTHING, "run_id, group_id, slot"),
    Account(
        "pass_at_1",
        _EVALUATION,
        "slots without a valid attempt are missing, and in the bounds alone",
        "name, run_id, policy_version, rule_set",
        ("name", "policy_version", "rule_set", "pass_at_1_macro", "bootstrap_low",
         "bootstrap_high", "clustered_low", "clustered_high", "with_missing_low",
         "with_missing_high", "pass_at_1_pooled", "pass_at_1_weighted", "published", "passed",
         "valid", "slots", "coverage", "missing_by_reason", "tasks", "tasks_without_valid"),
    ),
    Account(
        "pass_at_k",
        _EVALUATION,
        "tasks with fewer than k valid attempts are left out, by name",
        "run_id, policy_version, rule_set, k",
        ("policy_version", "rule_set", "k", "pass_at_k", "clustered_low", "clustered_high",
         "pass_hat_k", "published", "tasks",
         "tasks_counted", "tasks_left_out"),
    ),
    Account("task_outcomes", _EVALUATION, _NOTHING, "run_id, policy_version, rule_set, task_id"),
    Account("slot_outcomes", _EVALUATION, _NOTHING, "run_id, rule_set, task_id, group_id, slot"),
    Account(
        "capacity",
        "one minute of the clock, by samples",
        "minutes without a sample or a wait",
        "run_id, minute, kind, resource",
        ("minute", "kind", "resource", "used", "capacity", "used_share", "waiting_max", "waiter_s",
         "binding", "running", "queued", "in_model", "in_tool"),
    ),
    Account("runaway_contexts", "one turn", "turns whose size or engine is unknown",
            "run_id, ended_at",
            ("trajectory_id", "turn_no", "engine", "ended_at", "context_tokens", "limit_tokens",
             "limited_by", "kv_capacity_share", "kv_used_share", "queued_behind",
             "timed_out_behind")),
    Account("context_growth", _RUN, "turns whose tokens are unknown are not in the means",
            "run_id, turn_no"),
    Account("stop_reasons", _RUN, "attempts in flight", "run_id, trajectories DESC, stop_reason"),
    Account(
        "waste",
        _RUN,
        "sandboxes of unknown lifetime; it is attributed, and would not all have been saved",
        "cluster_id, run_id, reason",
        ("run_id", "reason", "trajectories", "generated_tokens", "prefilled_tokens", "gpu_s",
         "gpu_s_by_tokens", "declared_gpu_s", "share_of_gpu_s", "sandbox_s"),
    ),
    Account("conservation", _RUN, _NOTHING, "run_id, identity, step, group_id, trajectory_id"),
    Account("dispositions", _RUN, _NOTHING, "run_id, step, group_id, slot"),
    Account("slot_balance", _RUN, _NOTHING, "run_id, step, group_id"),
    Account(
        "policy_lag",
        "from the attempt's submission to the step that consumed it",
        "attempts that were not trained on; turns whose version is unknown are turns_unversioned",
        "run_id, step, group_id, slot",
        ("step", "trajectory_id", "submitted_version", "first_token_version", "last_token_version",
         "oldest_kv_version", "consumed_version", "lag", "lag_in_flight", "lag_in_queue"),
    ),
    Account("dataset_use", _RUN, "steps that were done in vain are in no count of what was trained",
            "name, run_id"),
    Account("selection", _RUN, "attempts of groups that are not decided",
            "run_id, rule_set, selection, reason"),
    Account("exclusions_by_version", _RUN, "attempts that no rule set has judged",
            "run_id, rule_set, version_when, policy_version"),
    Account("producers", "from its first pulse to its last", _NOTHING, "producer, first_alive_at"),
    Account("book_problems", "the whole book", _NOTHING, "problem"),
)  # fmt: skip
"""In the order of a run's story. A view that is only a step to another one is no account."""
