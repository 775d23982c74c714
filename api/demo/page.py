"""A real run of the demo for readers: docs/DEMO.md, and its first tables in README.md.

rollbook demo --json > docs/demo.json
python -m api.demo.page docs/demo.json          # writes both
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api.demo.accounts import print_accounts

INTRODUCTION = """\
# A run of the demo

`make demo` trains a tiny random Qwen3 to repair small repositories. Everything in it is real:
SGLang serves the policy, attempts run in sandboxes behind E2B's SDK, the reward is a test run,
Megatron-core trains with GRPO, and each version goes back into the engine. Things go wrong on
purpose: the server of the sandboxes refuses, loses and delays some, and contexts run away.

    make demo                        # on SQLite
    make demo LOG=kafka              # on a real Apache Kafka that it starts
    make demo ARGS="--sync --json"   # in step, for comparison; one object at the end
    rollbook demo --resume           # goes on after Ctrl-C, or after kill -9 of anything

This is what one run said at its end (`docs/demo.json` is the same as an object), and
`python -m api.demo.page docs/demo.json` renders it again.
"""
SHOWN = (
    "Held-out tasks, pass@1",
    "Where the trainer's time went, s",
    "Throughput",
    "Failures, and how many of them voted",
    "Conservation",
)
"""Tables that the README shows."""
BEGIN, END = "<!-- demo -->\n", "<!-- /demo -->"


def page_of(found: Mapping[str, Any]) -> str:
    """The page, from what `rollbook demo --json` printed."""
    return "\n".join([INTRODUCTION, "```", *_lines(found), "```", ""])


def readme_of(readme: str, found: Mapping[str, Any]) -> str:
    """The README with the tables that it shows. Raises ValueError where it has no place for
    them."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README must have {BEGIN.strip()} and {END}")
    tables = "\n".join(_lines(found)).split("\n\n")
    shown = [table for table in tables if table.startswith(SHOWN)]
    block = "\n\n".join(shown)
    return f"{before}{begin}```\n{block}\n```\n{end}{after}"


def _lines(found: Mapping[str, Any]) -> list[str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_accounts(found)
    return [line.rstrip() for line in said.getvalue().strip().splitlines()]


def main(source: Path) -> None:
    """Write what is rendered from that file, beside it and above."""
    found = json.loads(source.read_text())
    source.with_name("DEMO.md").write_text(page_of(found))
    readme = source.parents[1] / "README.md"
    readme.write_text(readme_of(readme.read_text(), found))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
