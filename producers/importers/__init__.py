"""Importers: runs that other systems recorded, as facts of ours.

    foreign files ─ read(path, options) ─▶ ForeignRun: drafts, claims, notes
                                              │
       rollbook import ◀─ write (only what the log lacks) ─ decide ─ reconcile ◀─ book

How to write one
----------------

A format is one module with one pure-ish function (it reads files, and nothing else):

    def read(path: Path, options: Options) -> list[ForeignRun]

one entry in `FORMATS`, and its marks in recognised.py. It goes through these, and nothing else:

    source.py   files and JSON with their place: `SourceFile.read`, `Json`. What isn't as the format
                says raises `BadImport` (value, rule, place). `where.ref` is a fact's source_ref.
    times.py    `Clock` (text) and `epoch` -> `Moment`, with an honest time quality. No time:
                `UNKNOWN`.
    figures.py  the ledger's side of a claim. sums.py: sums of figures that some files leave out.
    rewards.py  of several rewards, the one that counts.
    steps.py    training steps: phases laid end to end, files of console output.
    run.py      `ForeignRun`, its groups and attempts:

        run = ForeignRun("my-format", key=[job_id], kind=RunKind.EVAL, name="nightly", ref=ref)
        run.declare(dataset="swe-bench", model="m", configuration=configuration_of(config))
        group = run.group("task-1")
        attempt = group.attempt(key=[trial_id])
        attempt.start(clock.read(row, "started_at"), row.ref)
        attempt.fact("turn_completed", moment, row.ref, prompt_tokens=10, completion_tokens=3)
        attempt.reward(moment, row.ref, value=1.0, verifier="my-format")
        attempt.finish(moment, row.ref, stop_reason=StopReason.SUBMITTED, foreign_status="done")
        run.claim("attempts", 400, figures.ATTEMPTS, where.ref)
        run.note("3 ids of x.yaml name no attempt: a, b, c")

Rules, which the framework helps with and can't enforce:

1. Nothing is invented. What a file doesn't say is null: `turns_known=False` for an attempt whose
   turns are unknown, `value=None` for a reward that wasn't given, `UNKNOWN` for a time.
2. `prompt_tokens` includes cached ones, whatever the foreign word for it does.
3. Foreign words go into `error_type` and `foreign_status` verbatim; what they mean is said by the
   judgement's rules (`ledger/rules/errors.toml`) alone. Status and reward are apart.
4. `key` must come from the content (ids that the foreign system gave, or digests), never from a
   path of the machine, so that importing twice, or from elsewhere, gives the same ids.
5. Claims are what the foreign files say of themselves; the SQL beside each is how the ledger
   computes the same. `because` names a difference that the importer can prove to be none of ours.
6. Groups of an evaluation are decided behind the import. Runs of kind train are only judged:
   their batches were assembled elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import tzinfo
from importlib import import_module
from pathlib import Path

from producers.importers.recognised import formats_seen
from producers.importers.run import ForeignRun
from producers.importers.scrub import configuration_of
from producers.importers.source import BadImport

__all__ = ["FORMATS", "BadImport", "ForeignRun", "Options", "configuration_of", "read_runs"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user says of the files beside their path."""

    timezone: tzinfo | None = None
    """Zone of times that name none; null: such times are left out, and counted."""
    reports: tuple[Path, ...] = ()
    """Reports of a verifier that lie elsewhere, to be joined."""
    extra: dict[str, str] = field(default_factory=dict[str, str])
    """Settings of one format, by name."""

    def taken(self, *names: str) -> dict[str, str]:
        """The settings of a format, which knows `names`. Raises BadImport for another one."""
        if unknown := self.extra.keys() - set(names):
            known = ", ".join(sorted(names)) or "none"
            raise BadImport(
                f"--set {min(unknown)} is no setting of this format (settings: {known})"
            )
        return self.extra


Read = Callable[[Path, Options], list[ForeignRun]]


@dataclass(frozen=True, slots=True)
class Format:
    """A format, as `rollbook import --help` tells of it."""

    module: str
    """With a function `read`."""
    path: str
    """What PATH is."""
    settings: tuple[str, ...] = ()
    """What `--set` takes."""


FORMATS = {
    "atif": Format("atif", "a trajectory, or a folder of them"),
    "harbor": Format(
        "harbor", "the folder of a job or of jobs, or a trial's result.json", ("reward_key=NAME",)
    ),
    "miles": Format(
        "miles",
        "a folder of --dump-details (rollout_data, train_data, dashboard), or one dump",
        ("reward_key=NAME",),
    ),
    "mini-swe-agent": Format(
        "mini_swe_agent", "a folder of runs with their .traj.json files", ("merge=true",)
    ),
    "prime-rl": Format(
        "prime_rl", "an output folder with traces.jsonl or metrics.jsonl; verifiers' too"
    ),
    "slime": Format("slime", "console output, or a folder of it"),
    "swe-bench": Format(
        "swe_bench",
        "a run report, a submission's folder, harness logs, or leaderboards.json",
        ("instances=FILE", "dataset_size=N"),
    ),
    "terminal-bench": Format("terminal_bench", "results.json, or a folder with several"),
    "verl": Format(
        "verl", "a folder of {global_step}.jsonl, console output, or both", ("kind=eval",)
    ),
}
"""By name."""


def read_runs(form: str, path: Path, options: Options) -> list[ForeignRun]:
    """The runs that lie at `path` in a format. Raises BadImport, which names the format that the
    files look like where that is another one."""
    if not path.exists():
        raise BadImport(f"there is nothing at {path}")
    if form not in FORMATS:
        raise BadImport(
            f"format must be one of {', '.join(FORMATS)}, got {form!r}{_looks_like(path, form)}"
        )
    read: Read = import_module(f"producers.importers.{FORMATS[form].module}").read
    try:
        runs = read(path, options)
        if not any(run.has_content for run in runs):
            raise BadImport(f"{path} holds no attempt in format {form}: the run is empty")
    except BadImport as error:
        raise BadImport(f"{error}{_looks_like(path, form)}") from None
    return runs


def _looks_like(path: Path, form: str) -> str:
    """A hint behind an error; empty where the files look as they should, or like nothing."""
    seen = formats_seen(path)
    return "" if form in seen or not seen else f" (it looks like {' or '.join(seen)})"
