"""docs/DEMO.md: a real run of the demo, rendered from what it printed.

rollbook demo --json > docs/demo.json
python -m api.demo.page docs/demo.json > docs/DEMO.md
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
`python -m api.demo.page docs/demo.json > docs/DEMO.md` renders it again.
"""


def page_of(found: Mapping[str, Any]) -> str:
    """The page, from what `rollbook demo --json` printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_accounts(found)
    lines = [line.rstrip() for line in said.getvalue().strip().splitlines()]
    return "\n".join([INTRODUCTION, "```", *lines, "```", ""])


if __name__ == "__main__":
    sys.stdout.write(page_of(json.loads(Path(sys.argv[1]).read_text())))
