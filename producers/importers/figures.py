"""How the ledger computes what foreign files claim: queries over a book's views that give one value
each. `$run` is the run's id.

A foreign system counts a task's attempts without those that its own retries replaced, and one that
got no reward as failed: `outcomes` is read so. That is the published convention; what judgement
excludes is another account.
"""

from __future__ import annotations

_OUTCOMES = """
WITH outcomes AS (
    SELECT * FROM trajectories
    WHERE run_id = $run AND trajectory_id NOT IN (
        SELECT replaces FROM trajectories WHERE run_id = $run AND replaces IS NOT NULL
    )
)
"""


def of_outcomes(expression: str, where: str = "true") -> str:
    """An aggregate over the attempts that count."""
    return f"{_OUTCOMES} SELECT {expression} FROM outcomes WHERE {where}"


def of_attempts(expression: str, where: str = "true") -> str:
    """An aggregate over all attempts, replaced ones too."""
    return f"SELECT {expression} FROM trajectories WHERE run_id = $run AND {where}"


def of_facts(table: str, expression: str, where: str = "true") -> str:
    """An aggregate over the facts of one kind."""
    return f"SELECT {expression} FROM {table} WHERE run_id = $run AND {where}"


def of_step(number: int, expression: str) -> str:
    """One value of one training step."""
    return of_facts("steps", expression, f"step = {number}")


def sampled_for(step: int) -> str:
    """The attempts of groups that were opened for a step, as a condition."""
    return f"group_id IN (SELECT group_id FROM opened_groups WHERE target_step = {step})"


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def with_status(status: str) -> str:
    """Attempts that the foreign system called so, replaced ones too."""
    return of_attempts("count(*)", f"foreign_status = {quoted(status)}")


def pass_at_k(k: int) -> str:
    """Mean over tasks with at least k attempts of 1 - C(n - c, k) / C(n, k); nothing where no task
    has that many. An attempt without a reward counts as failed."""
    return f"""{_OUTCOMES}, tasks_tried AS (
    SELECT task_id, count(*) AS n, count(*) FILTER (passed) AS c FROM outcomes GROUP BY task_id
)
SELECT avg(1 - list_product(list_transform(
    range({k}), lambda i: greatest(n - c - i, 0)::DOUBLE / (n - i)
)))
FROM tasks_tried WHERE n >= {k}"""


ATTEMPTS = of_outcomes("count(*)")
ALL_ATTEMPTS = of_attempts("count(*)")
PASSED = of_outcomes("count(*) FILTER (passed)")
FAILED = of_outcomes("count(*) FILTER (NOT passed)")
UNSCORED = of_outcomes("count(*) FILTER (reward IS NULL)")
PASS_AT_1 = of_outcomes("count(*) FILTER (passed) / count(*)")
PROMPT_TOKENS = of_attempts("sum(prompt_tokens)::BIGINT")
CACHED_TOKENS = of_attempts("sum(cached_tokens)::BIGINT")
COMPLETION_TOKENS = of_attempts("sum(completion_tokens)::BIGINT")
COST_USD = of_attempts("sum(cost_usd)")
TURNS = of_attempts("sum(turns)::BIGINT")
TOOL_CALLS = of_attempts("sum(tool_calls)::BIGINT")
CALLS = of_attempts("(sum(turns) + sum(turns_failed))::BIGINT")
