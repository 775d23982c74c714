"""Which run of a log is meant by the beginning of its id, or by its name, as in a book."""

from __future__ import annotations

import uuid

from ledger.accounts.sides import SHORTEST_ID
from ledger.log import EventLog, LogError
from producers.importers.held import declared_runs


def find_in_log(log: EventLog, text: str) -> str:
    """The id of the one run that `text` means: a whole id is its own, declared or not. Raises
    LogError where no run, or more than one, is meant."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        pass
    begins = text.lower() if len(text) >= SHORTEST_ID else None
    found = {
        run_id: name
        for run_id, name in declared_runs(log).items()
        if name == text or (begins is not None and run_id.startswith(begins))
    }
    if len(found) != 1:
        which = ", ".join(f"{run_id} ({name})" for run_id, name in sorted(found.items())) or "none"
        raise LogError(
            f"--run must be the id, its beginning or the name of one run of this log, got {text!r},"
            f" which means {which}"
        )
    return next(iter(found))
