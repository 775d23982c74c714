"""Commands about judgement: judge."""

from __future__ import annotations

from typing import Annotated

import typer

from api.log_runs import find_in_log
from api.options import ConfigOption, FormatOption, LogOption, the_log
from api.output import Format, print_rows, progress_bar, say
from consumers.judge import judge_log
from ledger.judgement import RulesError, load_rules, newest_rules
from ledger.log import LogError

ERRORS = (LogError, RulesError)
MAX_NAMED = 20
"""Unreadable records that are named one by one."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(judge)


def judge(
    rules: Annotated[
        int | None,
        typer.Option("--rules", help="Number of the rule set (default: the one to train by)."),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Judge attempts of this run only (id or name).")
    ] = None,
    log: LogOption = None,
    config: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Judge every ended attempt anew, by appending; what was trained on stays as it is. Exit status
    1 if records were unreadable."""
    rule_set = newest_rules() if rules is None else load_rules(rules)
    with the_log(log, config) as source, progress_bar("reading") as progress:
        run_id = None if run is None else find_in_log(source, run)
        result = judge_log(source, rule_set, run_id, progress)
    print_rows(["outcome", "blame", "class", "excluded", "attempts"], result.counts, form)
    say(
        f"rule set {rule_set.number}, {rule_set.title}: {result.judged} ended attempts judged,"
        f" {result.written} judgements new, {result.in_flight} attempts in flight"
    )
    for place in result.unreadable[:MAX_NAMED]:
        say(f"passed over: {place}")
    if (more := len(result.unreadable) - MAX_NAMED) > 0:
        say(f"passed over: {more} records more")
    raise typer.Exit(1 if result.unreadable else 0)
