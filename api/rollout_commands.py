"""rollbook rollout: attempts at tasks, recorded."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import statistics
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.options import ConfigOption, FormatOption
from api.output import Format, print_rows, say
from api.settings import load
from ledger.facts.lists import RunKind
from ledger.log import EventLog
from ledger.open_log import open_log

if TYPE_CHECKING:
    from ledger.recorder import Recorder
    from producers.campaign import Plan
    from producers.rollout import Tally

FLUSH_S = 60.0
"""Most seconds that the last facts get to become durable; a supervisor's grace must be longer."""


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(rollout)


TasksOption = Annotated[
    str, typer.Option(help="micro_repair:train, micro_repair:held_out, or a .jsonl of instances.")
]
EngineOption = Annotated[
    list[str] | None, typer.Option(help="URL of an SGLang server; may be given again.")
]
SandboxesOption = Annotated[
    str | None, typer.Option(help="URL of an E2B-compatible server (default: E2B itself).")
]
KindOption = Annotated[RunKind, typer.Option(help="What the run is for.")]
NameOption = Annotated[str, typer.Option(help="Name of the run, for people.")]
RunOption = Annotated[uuid.UUID | None, typer.Option(help="UUID of the run (default: a new one).")]
SizeOption = Annotated[int, typer.Option(min=1, help="Attempts per task, scored together.")]
GroupsOption = Annotated[
    int | None, typer.Option(min=1, help="Groups to open (default: each task once).")
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Attempts in flight.")]
SlotsOption = Annotated[int, typer.Option(min=1, help="Sandboxes at once.")]
ShuffleOption = Annotated[
    int | None, typer.Option(help="Seed of the tasks' order (default: the dataset's order).")
]
ValidateOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="Try each task's tests so often before use (default: 1; generated tasks: 0)."
    ),
]
TemperatureOption = Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")]
TurnsOption = Annotated[int | None, typer.Option(min=1, help="Most turns (default: the tasks').")]
OutputOption = Annotated[int | None, typer.Option(min=1, help="Most tokens of a turn.")]
ContextOption = Annotated[int | None, typer.Option(min=1, help="Most tokens of an attempt.")]
ClockOption = Annotated[
    float | None, typer.Option(min=0.001, help="Most seconds on the policy's clock.")
]
UntilDecidedOption = Annotated[
    bool,
    typer.Option("--until-decided", help="Refill slots as an assembler asks; end when it is done."),
]
SpoolOption = Annotated[Path | None, typer.Option(help="Where facts wait while the log is away.")]


def rollout(
    tasks: TasksOption,
    log: Annotated[str | None, typer.Option("--log", help="URL of the log.")] = None,
    engine: EngineOption = None,
    sandboxes: SandboxesOption = None,
    kind: KindOption = RunKind.TRAIN,
    name: NameOption = "rollout",
    run_id: RunOption = None,
    group_size: SizeOption = 8,
    groups: GroupsOption = None,
    concurrency: ConcurrencyOption = 16,
    sandbox_slots: SlotsOption = 16,
    shuffle: ShuffleOption = None,
    validate: ValidateOption = None,
    temperature: TemperatureOption = 1.0,
    turn_cap: TurnsOption = None,
    output_cap: OutputOption = None,
    context_cap: ContextOption = None,
    clock_cap: ClockOption = None,
    until_decided: UntilDecidedOption = False,
    spool: SpoolOption = None,
    config: ConfigOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Open groups of attempts and run them. SIGTERM and Ctrl-C end them as cancelled."""
    from ledger.recorder import Recorder

    settings = load(config)
    caps = {
        "turns": turn_cap,
        "output_tokens": output_cap,
        "context_tokens": context_cap,
        "clock_s": clock_cap,
    }
    plan = replace(
        _plan(tasks, caps, temperature, sandboxes or settings.sandboxes.url, sandbox_slots),
        engine_urls=tuple(engine or settings.engines.urls),
        concurrency=concurrency,
        groups=groups,
        shuffle_seed=shuffle,
    )
    if validate is not None:
        plan = replace(plan, validate_repeats=validate)
    scope = replace(plan.scope, kind=kind, name=name, group_size=group_size)
    plan = replace(plan, scope=replace(scope, configuration=_configuration(plan)))
    url = settings.log.url if log is None else log
    recorder = Recorder(
        url,
        producer="rollout",
        run_id=str(run_id or uuid.uuid4()),
        options=settings.log.client_options,
        spool_dir=spool,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(recorder))
        source = None
        if until_decided:
            source = stack.enter_context(open_log(url, settings.log.client_options))
        tally, cancelled = asyncio.run(_run(plan, recorder, source))
        if cancelled:  # Python's own end would give a late signal back its default: to kill
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        safe = recorder.close(FLUSH_S)
    _print(recorder, tally, output)
    raise typer.Exit(1 if _problem(recorder, tally, safe) or cancelled else 0)


def _problem(recorder: Recorder, tally: Tally, safe: bool) -> bool:
    """Whether something is wrong with what was recorded; says so."""
    if recorder.spooled is not None:
        say(
            f"the log has not taken all facts: {recorder.spooled} holds the rest, and"
            " `rollbook drain` brings them once the log is there"
        )
    elif not safe:
        say(f"{recorder.lost} facts were given up; producer_lost facts say why")
    if tally.attempts and not tally.rewards:
        say("no attempt was scored: stop_reasons and errors say why")
    return recorder.spooled is not None or not safe or (tally.attempts > 0 and not tally.rewards)


def _plan(
    spec: str, caps: dict[str, Any], temperature: float, sandbox_url: str | None, slots: int
) -> Plan:
    """A plan with everything but its size."""
    from producers.action_loop import AgentSettings
    from producers.campaign import Plan
    from producers.engine import Sampling
    from producers.sandboxes.settings import SandboxSettings
    from producers.scope import RunScope
    from producers.tasks.load import load_tasks

    tasks = load_tasks(spec)
    given = {name: value for name, value in caps.items() if value is not None}
    return Plan(
        scope=RunScope(kind=RunKind.TRAIN, name="", group_size=1),
        tasks=tasks,
        agent=AgentSettings(
            caps=replace(tasks.caps, **given),
            sampling=Sampling(temperature=temperature, stop_token_ids=tasks.stop_token_ids),
            action_tokens=tasks.action_tokens,
        ),
        engine_urls=(),
        sandboxes=SandboxSettings(
            backend="e2b" if sandbox_url is None else "local",
            api_url=sandbox_url,
            sandbox_url=sandbox_url,
            slots=slots,
        ),
        # Generated ones are right by construction, and tested here.
        validate_repeats=0 if tasks.tokenizer is None else 1,
    )


def _configuration(plan: Plan) -> dict[str, Any]:
    """What `run_declared` says of the settings; no secrets."""
    sandboxes = {**asdict(plan.sandboxes), "api_key": None}
    own = {
        name: getattr(plan, name)
        for name in ("engine_urls", "concurrency", "groups", "shuffle_seed", "validate_repeats")
    }
    return {**own, "sandboxes": sandboxes, "retries": asdict(plan.agent.retries)}


async def _run(plan: Plan, recorder: Recorder, log: EventLog | None) -> tuple[Tally, bool]:
    """What became of the attempts, and whether a signal ended them."""
    from producers.campaign import Campaign
    from producers.rollout import RolloutBroken

    campaign = Campaign(plan, recorder, log)
    running = asyncio.ensure_future(campaign.run())
    loop = asyncio.get_running_loop()
    told: list[bool] = []

    def end(*_: object) -> None:
        # Once: a second cancellation would hit the clean-up, and sandboxes would outlive it. And
        # still there when the loop is gone: the last facts must become durable.
        if not told:
            loop.call_soon_threadsafe(running.cancel)
        told.append(True)
        say("ending: attempts in flight are cancelled, and their sandboxes killed")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        await running
    except asyncio.CancelledError:
        return campaign.tally, True
    except RolloutBroken as broken:
        say(f"error: {broken}")
        return campaign.tally, True
    return campaign.tally, False


def _print(recorder: Recorder, tally: Tally, output: Format) -> None:
    rewards = tally.rewards
    print_rows(
        ("run_id", "groups", "attempts", "scored", "mean_reward", "stop_reasons", "errors"),
        [
            (
                recorder.run_id,
                tally.groups,
                tally.attempts,
                len(rewards),
                statistics.fmean(rewards) if rewards else None,
                dict(tally.stop_reasons),
                dict(tally.errors),
            )
        ],
        output,
    )
