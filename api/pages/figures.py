"""What the page's figures mean: what is counted, held against what.

The rest (what one row is, its window, what it leaves out) is the account's own, in
`ledger.accounts.registry`, unless a panel looks at another stretch of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Panel(StrEnum):
    """What the page asks for."""

    RUN = "run"
    STEP_TIME = "step_time"
    THROUGHPUT = "throughput"
    THROUGHPUT_COURSE = "throughput_course"
    FAILURES = "failures"
    CONTAMINATION = "contamination"
    QUALITY = "quality"
    TAIL = "tail"
    LOW_OCCUPANCY = "low_occupancy"
    GANTT = "gantt"
    CAPACITY = "capacity"
    LAG = "lag"
    SELECTION = "selection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One panel's figures; their query is `sql/NAME.sql`."""

    account: str | None = None
    """The account's view; null: facts that no account is of."""
    numerator: str
    denominator: str
    definition: str | None = None
    """Null: the account's."""
    window: str | None = None
    """Null: the account's."""
    excluded: str | None = None
    """Null: the account's."""


FIGURES = {
    Panel.RUN: Figure(
        numerator="facts of the run in the book",
        denominator="nothing",
        definition="One row: the run as declared, how much of it there is, and who still records.",
        window="the whole run, up to the book's position",
        excluded="nothing",
    ),
    Panel.STEP_TIME: Figure(
        account="step_time",
        numerator="seconds of a phase on the trainer's rank 0",
        denominator="the step's wall time: the phases and unattributed_s come to it",
        window="the last 50 completed steps, each from the end of the step before it to its own",
    ),
    Panel.THROUGHPUT: Figure(
        account="throughput",
        numerator="equivalents: completed attempts, each by the share of its active time that lies"
        " in the span",
        denominator="wall-hours of the span, times inference nodes or sandbox slots as declared",
    ),
    Panel.THROUGHPUT_COURSE: Figure(
        account="throughput",
        numerator="attempts that ended in the stretch with a scored, trainable reward",
        denominator="hours of the stretch",
        definition="One row per stretch of the run inside a span of constant declared resources:"
        " what ended in it. Stretches never cross a change of resources.",
        window="a sixtieth of the run, or a minute where that is less",
        excluded="a last stretch that has lasted less than half as long as the others",
    ),
    Panel.FAILURES: Figure(
        account="failures",
        numerator="failures of a stage, class and blame, retries among them",
        denominator="share_of_tries: tries of that stage; share_of_trajectories: judged attempts;"
        " share_of_slots: opened slots",
    ),
    Panel.CONTAMINATION: Figure(
        account="contamination",
        numerator="votes of attempts that were lost through no fault of the policy, and zeros that"
        " no verifier gave",
        denominator="nothing: a count, which at_decision must be 0",
        definition="One row per kind of vote that taught something false: how many votes, in how"
        " many groups.",
    ),
    Panel.QUALITY: Figure(
        account="pass_at_1",
        numerator="passes among first valid attempts, as the mean over tasks",
        denominator="tasks with a valid attempt; the outer range counts missing ones as 0 and as 1",
        window="evaluations of this run; and those that name no run they are of",
    ),
    Panel.TAIL: Figure(
        account="rollout_tail",
        numerator="tail_share: seconds from t90, when 90% of the step's attempts had ended, to the"
        " last end",
        denominator="seconds from the first start to the last end",
        window="the last 200 steps for which attempts were sampled",
    ),
    Panel.LOW_OCCUPANCY: Figure(
        account="low_occupancy",
        numerator="seconds with at most 10% of the declared concurrency in flight",
        denominator="seconds of the window",
        window="the last 48 clock hours of the run",
    ),
    Panel.GANTT: Figure(
        account="stragglers",
        numerator="time of an attempt in each stage; where two overlap, the one that took longer",
        denominator="the step's time, in 400 slices",
        definition="One row per stretch of an attempt in one stage. Attempts are those that were"
        " sampled for the step, or voted in its batch where none were sampled for a step; without"
        " a step, the 60 that began last.",
        window="from the first request to the last end of what is shown",
        excluded="attempts over 120: those that ended last are shown",
    ),
    Panel.CAPACITY: Figure(
        account="capacity",
        numerator="used: mean over the samples of a minute; waiting_max: the most waiters",
        denominator="the pool's limit, the engine's KV tokens, the declared concurrency",
        window="the last 180 minutes with a sample",
    ),
    Panel.LAG: Figure(
        account="policy_lag",
        numerator="trained attempts, by versions that went by in flight and in the queue",
        denominator="attempts that were trained on",
        definition="One row per lag in flight and in queue: how many trained attempts had it.",
    ),
    Panel.SELECTION: Figure(
        account="selection",
        numerator="attempts of decided groups, by what became of them",
        denominator="all attempts of decided groups; means beside those of what was taken",
    ),
}
"""What each of them shows."""
