"""The account of injected faults: each one in memory and, before it strikes, in a JSONL file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from producers.local_e2b.faults import Rule


class FaultLog:
    """Appends to `faults.jsonl`; a line per fault, of this server and earlier ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.injected: list[dict[str, Any]] = []
        """Those of this server."""

    def add(self, rule: Rule, create_no: int, sandbox_id: str | None, served: int) -> None:
        """A rule strikes. `sandbox_id` is None where the sandbox doesn't exist yet."""
        found = {
            "time_s": time.time(),
            "kind": rule.kind,
            "rule": rule.text,
            "sandbox_id": sandbox_id,
            "create_no": create_no,
            "served": served,
        }
        self.injected.append(found)
        with self.path.open("a") as file:
            file.write(json.dumps(found) + "\n")
