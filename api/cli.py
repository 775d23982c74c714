"""The command line: `rollbook COMMAND`. One command is one function.

    project audit sql                      the book           api/book_commands.py
    serve                                  the book, asked    api/serve_commands.py
    replay                                 book and batches   api/replay_commands.py
    assemble                               batches           api/assemble_commands.py
    assemble-sft                           batches of traces api/sft_commands.py
    train                                  a policy           api/train_commands.py
    archive copy-log backup restore drain  the log            api/log_commands.py
    rollout                                attempts           api/rollout_commands.py
    judge                                  judgements         api/judge_commands.py
    import                                 others' runs       api/import_commands.py
    export atif                            runs for others    api/export_commands.py
    simulate                               made-up runs      api/simulate_commands.py
    doctor                                 this machine      api/doctor_commands.py
    report                                 one account       api/report_commands.py
    compare                                two runs or spans api/compare_commands.py
    alerts                                 thresholds        api/alert_commands.py
    broker start|stop|status               Apache Kafka here  api/broker_commands.py
    engine install|tiny|start|stop|status  SGLang here        api/engine_commands.py
    sandboxes start|stop|status            sandboxes here     api/sandbox_commands.py

Results go to stdout, progress and errors to stderr. Exit status: 0 done, 1 a finding, 2 bad input.
"""

from __future__ import annotations

import os
import sys

import typer

from api import (
    alert_commands,
    assemble_commands,
    book_commands,
    broker_commands,
    compare_commands,
    demo_commands,
    doctor_commands,
    engine_commands,
    export_commands,
    import_commands,
    judge_commands,
    log_commands,
    replay_commands,
    report_commands,
    rollout_commands,
    sandbox_commands,
    serve_commands,
    sft_commands,
    simulate_commands,
    train_commands,
)
from api.output import say
from api.settings import SettingsError

app = typer.Typer(
    name="rollbook",
    help="The ledger of agentic RL: facts in a log, accounts in a book.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
book_commands.add_to(app)
serve_commands.add_to(app)
replay_commands.add_to(app)
log_commands.add_to(app)
rollout_commands.add_to(app)
judge_commands.add_to(app)
import_commands.add_to(app)
assemble_commands.add_to(app)
sft_commands.add_to(app)
train_commands.add_to(app)
simulate_commands.add_to(app)
report_commands.add_to(app)
compare_commands.add_to(app)
alert_commands.add_to(app)
demo_commands.add_to(app)
doctor_commands.add_to(app)
app.add_typer(broker_commands.app, name="broker")
app.add_typer(export_commands.app, name="export")
app.add_typer(engine_commands.app, name="engine")
app.add_typer(sandbox_commands.app, name="sandboxes")

ERRORS = (
    SettingsError,
    broker_commands.BrokerError,
    engine_commands.EngineServerError,
    sandbox_commands.LocalE2BError,
    *book_commands.ERRORS,
    *serve_commands.ERRORS,
    *log_commands.ERRORS,
    *judge_commands.ERRORS,
    *import_commands.ERRORS,
    *simulate_commands.ERRORS,
    *assemble_commands.ERRORS,
    *sft_commands.ERRORS,
    *train_commands.ERRORS,
    *demo_commands.ERRORS,
    *report_commands.ERRORS,
)
"""What a user can have caused."""


def main() -> None:
    """Run one command; an error of the user's making is one line and exit status 2."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: no error
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    except ERRORS as error:
        say(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
