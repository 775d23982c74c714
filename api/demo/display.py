"""Progress on stderr: a live table on a terminal, else a line whenever something has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.live import Live
from rich.table import Table

from api.demo.progress import Figures
from api.output import errors, say

REFRESH_S = 0.5
LINE_S = 15.0
"""Without a terminal: most seconds of silence."""


class Show(Protocol):
    """What a demo tells about itself."""

    def tick(self) -> None:
        """Time has passed."""
        ...

    def say(self, text: str) -> None:
        """Something happened."""
        ...


Rows = list[tuple[str, str]]


def rows_of(figures: Figures, evaluations: dict[str, str]) -> Rows:
    """What there is to say: name and value. `evaluations`: names by run."""
    step = figures.step
    training = figures.runs.get(figures.run_id)
    rows: Rows = [("step", f"{step.step if step else 0} of {figures.last_step}")]
    if figures.reward is not None:
        rows.append(("reward", f"{figures.reward:.2f}"))
    for run_id, name in evaluations.items():
        run = figures.runs.get(run_id)
        if run is not None and run.scored:
            rows.append((f"pass@1 {name}", f"{run.passed / run.scored:.1%} of {run.scored}"))
    if training is not None:
        if training.per_hour is not None:
            rows.append(("trajectories/h", f"{training.per_hour:,.0f}"))
        told = ", ".join(f"{count} {blame}" for blame, count in sorted(training.failures.items()))
        rows.append(("failures", told or "none"))
    if figures.lag is not None:
        rows.append(("policy lag", f"{figures.lag:.2f} versions"))
    rows.append(("trainer waits for", figures.waits_for))
    return rows


class Lines:
    """For a pipe or a file."""

    def __init__(self, rows: Callable[[], Rows]) -> None:
        self._rows = rows
        self._began = time.monotonic()
        self._told = ""
        self._told_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tick(self) -> None:
        """A line for each step, and now and then."""
        now, rows = time.monotonic(), self._rows()
        if rows[0][1] == self._told and now - self._told_s < LINE_S:
            return
        self._told, self._told_s = rows[0][1], now
        self.say(", ".join(f"{name} {value}" for name, value in rows))

    def say(self, text: str) -> None:
        """With the seconds since the start."""
        say(f"{time.monotonic() - self._began:6.1f} s  {text}")


class Screen:
    """For a terminal."""

    def __init__(self, rows: Callable[[], Rows]) -> None:
        self._rows = rows
        self._next_s = 0.0
        self._live = Live(console=errors, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def tick(self) -> None:
        """The newest figures."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + REFRESH_S
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        for row in self._rows():
            table.add_row(*row)
        self._live.update(table, refresh=True)

    def say(self, text: str) -> None:
        """Above the figures."""
        self._live.console.print(text, highlight=False, markup=False)


def shown(rows: Callable[[], Rows]) -> Lines | Screen:
    """As stderr is."""
    return Screen(rows) if errors.is_terminal else Lines(rows)
