"""The end of a demo for people: its accounts as tables, and where to look further."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from api.output import Format, print_rows

FURTHER = (
    ("any question", 'sql "FROM steps"'),
    ("every fact is there once, and all accounts balance", "audit --as-is"),
    ("the same batches again, to the hash", "replay --batches"),
)
"""What to ask next, and how."""


def print_accounts(found: Mapping[str, Any], command: str = "rollbook") -> None:
    """What `summary_of` found, as tables on stdout; `command` is how its reader calls it."""
    _table("Held-out tasks, pass@1", _quality(found))
    _table("Training steps", [_step(row) for row in found["learning"]])
    _table("Where the trainer's time went, s", [_seconds(found["seconds"]["trainer"])])
    _table("Throughput", [_throughput(found)])
    _table("Groups", [found["groups"]])
    _table("Failures, and how many of them voted", found["failures"])
    _table("Faults that were injected", [found["injected"]])
    _table("Conservation", [_conservation(found)])
    spent: Mapping[str, float] = found["seconds"]["demo"]
    _table("The demo's own time, s", [_seconds({**spent, "all": sum(spent.values())})])
    if found["deaths"]:
        _table("Parts that died and were started again", [found["deaths"]])
    print(
        f"\nThe {found['held_out']} held-out tasks are repositories that training never saw; the"
        " kinds of bug\nin them are the same.\n"
    )
    folder = found["folder"]
    print(f"log   {found['log_url']}")
    print(f"book  {folder}/book.duckdb\n")
    for what, line in FURTHER:
        print(f"# {what}\n{command} {line} --config {folder}/rollbook.toml")


def command_here() -> str:
    """What this shell calls `rollbook` by: a virtual environment needn't be on its path."""
    if shutil.which("rollbook") is not None:
        return "rollbook"
    return os.path.relpath(Path(sys.executable).with_name("rollbook"))


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{title}")
    rows = [row for row in rows if row]
    if not rows:
        print("none")
        return
    print_rows(list(rows[0]), [list(row.values()) for row in rows], Format.TABLE)


def _quality(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for when in ("before", "after"):
        each = found[f"pass_at_1_{when}"]
        low, high = each["interval"] or (None, None)
        rows.append(
            {
                "when": when,
                "version": each["policy_version"],
                "pass@1": _percent(each["value"]),
                "95% interval": f"{_percent(low)} to {_percent(high)}",
                "attempts": f"{each['valid']} of {each['slots']}",
                "missing failed": _percent(each["if_missing_failed"]),
                "missing passed": _percent(each["if_missing_passed"]),
            }
        )
    return rows


def _throughput(found: Mapping[str, Any]) -> dict[str, Any]:
    told = found["throughput"]
    share = "tail share" if found["mode"] == "sync" else "low occupancy share"
    return {
        "attempts": told["attempted"],
        "scored and trainable": told["completed"],
        "of these per hour": round(told["completed_per_rollout_hour"] or 0),
        "generated tokens/s": round(told["generated_tokens_per_s"] or 0),
        share: _percent(found[share.replace(" ", "_")]),
    }


def _step(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": row["step"],
        "at, s": round(row["at_s"], 1),
        "wall, s": round(row["wall_s"], 2),
        "waiting, s": round(row["waiting_s"], 2),
        "trajectories": row["trajectories"],
        "reward": None if row["reward"] is None else round(row["reward"], 3),
        "lag": None if row["lag"] is None else round(row["lag"], 2),
        "loss": None if row["loss"] is None else round(row["loss"], 4),
    }


def _conservation(found: Mapping[str, Any]) -> dict[str, Any]:
    names = ("facts", "conservation_violations", "lost", "duplicated")
    told = {name.replace("_", " "): found[name] for name in names}
    return told | {"contaminating votes": found["contamination"]["at_decision"]}


def _seconds(spent: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name.removesuffix("_s"): round(value, 1)
        for name, value in spent.items()
        if value is not None
    }


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}%"
