"""rollbook rollout: attempts at tasks, recorded."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import uuid
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.options import ConfigOption, FormatOption, LogOption, SpoolOption
from api.output import Format, print_rows, say
from api.settings import load
from api.signals import cancel_on_signals, ignore_signals
from ledger.facts.lists import RunKind
from ledger.log import EventLog
from ledger.open_log import open_log

if TYPE_CHECKING:
    from ledger.recorder import Recorder
    from producers.action_loop import AgentSettings
    from producers.campaign import Plan
    from producers.rollout import Tally
    from producers.sandboxes.settings import SandboxSettings
    from producers.tasks.task import TaskSet

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
ParentOption = Annotated[
    uuid.UUID | None, typer.Option(help="The run whose weights it starts from or evaluates.")
]
ParentVersionOption = Annotated[
    int | None, typer.Option(min=0, help="The policy version of the parent.")
]
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
UntilStepOption = Annotated[
    int | None,
    typer.Option(min=1, help="Keep step with training; end when this step is done."),
]
AheadOption = Annotated[
    int, typer.Option(min=1, help="With --until-step: most groups that wait to be trained on.")
]
SyncOption = Annotated[
    bool, typer.Option("--sync", help="With --until-step: sample for one step after the other.")
]
SampleOption = Annotated[
    float, typer.Option(min=0.01, help="Seconds between samples of engines and pools.")
]


def rollout(
    tasks: TasksOption,
    log: LogOption = None,
    engine: EngineOption = None,
    sandboxes: SandboxesOption = None,
    kind: KindOption = RunKind.TRAIN,
    name: NameOption = "rollout",
    run_id: RunOption = None,
    parent: ParentOption = None,
    parent_version: ParentVersionOption = None,
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
    sample_every: SampleOption = 1.0,
    until_decided: UntilDecidedOption = False,
    until_step: UntilStepOption = None,
    ahead: AheadOption = 12,
    sync: SyncOption = False,
    spool: SpoolOption = None,
    config: ConfigOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Open groups of attempts and run them. SIGTERM and Ctrl-C end them as cancelled."""
    from ledger.recorder import Recorder
    from producers.campaign import Plan
    from producers.pace import PaceSettings
    from producers.scope import RunScope
    from producers.tasks.load import load_tasks

    _check_together(parent, parent_version, until_decided, until_step)
    settings = load(config)
    task_set = load_tasks(tasks)
    caps = _given(turns=turn_cap, output_tokens=output_cap, context_tokens=context_cap)
    caps |= _given(clock_s=clock_cap)
    plan = Plan(
        scope=RunScope(kind, name, group_size, str(parent) if parent else None, parent_version),
        tasks=task_set,
        agent=_agent_settings(task_set, caps, temperature),
        engine_urls=tuple(engine or settings.engines.urls),
        sandboxes=_sandbox_settings(sandboxes or settings.sandboxes.url, sandbox_slots),
        concurrency=concurrency,
        groups=groups,
        pace=None if until_step is None else PaceSettings(until_step, ahead, sync),
        shuffle_seed=shuffle,
        validate_repeats=_validations(task_set) if validate is None else validate,
        sample_every_s=sample_every,
    )
    plan = replace(plan, scope=replace(plan.scope, configuration=_configuration(plan)))
    url = settings.log.url if log is None else log
    options = settings.log.client_options
    run = str(run_id or uuid.uuid4())
    recorder = Recorder(url, producer="rollout", run_id=run, options=options, spool_dir=spool)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(recorder))
        reads = until_decided or plan.pace is not None
        source = stack.enter_context(open_log(url, options)) if reads else None
        tally, early = asyncio.run(_run(plan, recorder, source))
        ignore_signals()  # the last facts must become durable
        safe = recorder.close(FLUSH_S)
    _print(recorder, tally, output)
    raise typer.Exit(1 if _problem(recorder, tally, safe) or early else 0)


def _check_together(
    parent: uuid.UUID | None, version: int | None, until_decided: bool, until_step: int | None
) -> None:
    """Raises BadParameter for options that don't go together."""
    if until_decided and until_step is not None:
        raise typer.BadParameter("--until-decided and --until-step don't go together")
    if parent is None and version is not None:
        raise typer.BadParameter(f"--parent-version {version} needs the --parent that has it")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _agent_settings(tasks: TaskSet, caps: dict[str, Any], temperature: float) -> AgentSettings:
    """As the tasks ask for, with `caps` over theirs."""
    from producers.action_loop import AgentSettings
    from producers.engine import Sampling

    return AgentSettings(
        caps=replace(tasks.caps, **caps),
        sampling=Sampling(temperature=temperature, stop_token_ids=tasks.stop_token_ids),
        action_tokens=tasks.action_tokens,
    )


def _sandbox_settings(url: str | None, slots: int) -> SandboxSettings:
    """Of a server; None: of E2B itself."""
    from producers.sandboxes.settings import SandboxSettings

    backend = "e2b" if url is None else "local"
    return SandboxSettings(backend=backend, api_url=url, sandbox_url=url, slots=slots)


def _validations(tasks: TaskSet) -> int:
    """How often tasks are tried before use unless told otherwise. Generated ones, which have no
    tokenizer, are right by construction."""
    return 0 if tasks.tokenizer is None else 1


def _problem(recorder: Recorder, tally: Tally, safe: bool) -> bool:
    """Whether something is wrong with what was recorded; says so."""
    lines: list[str] = []
    if recorder.spooled is not None:
        lines.append(
            f"the log has not taken all facts: {recorder.spooled} holds the rest, and"
            " `rollbook drain` brings them once the log is there"
        )
    elif not safe:
        lines.append(f"{recorder.lost} facts were given up; producer_lost facts say why")
    if tally.attempts and not tally.rewards:
        lines.append("no attempt was scored: stop_reasons and errors say why")
    for line in lines:
        say(line)
    return bool(lines)


def _configuration(plan: Plan) -> dict[str, Any]:
    """What `run_declared` says of the settings; no secrets."""
    sandboxes = {**asdict(plan.sandboxes), "api_key": None}
    names = ("engine_urls", "concurrency", "groups", "shuffle_seed", "validate_repeats")
    own = {name: getattr(plan, name) for name in (*names, "sample_every_s")}
    pace = None if plan.pace is None else asdict(plan.pace)
    return {**own, "pace": pace, "sandboxes": sandboxes, "retries": asdict(plan.agent.retries)}


async def _run(plan: Plan, recorder: Recorder, log: EventLog | None) -> tuple[Tally, bool]:
    """What became of the attempts, and whether it ended early: by a signal, or for lack of engines
    or sandboxes."""
    from producers.campaign import Campaign
    from producers.rollout import RolloutBroken

    campaign = Campaign(plan, recorder, log)
    running = asyncio.ensure_future(campaign.run())
    cancel_on_signals(
        running, "ending: attempts in flight are cancelled, and their sandboxes killed"
    )
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
