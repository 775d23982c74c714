"""What the assembler asks of those who run groups: other attempts in the place of lost ones.

Read from the log like everything else, from where it ended when the rollout began. A request is
answered once; a group that was decided is asked for nothing more.
"""

from __future__ import annotations

from ledger.facts import GroupDecided, RefillRequested
from ledger.log import EventLog
from producers.tail import Tail


class Refills(Tail[RefillRequested | GroupDecided]):
    """The requests and decisions of a run, as they come in."""

    def __init__(self, log: EventLog, run_id: str) -> None:
        """What was in the log before is of no group that is opened from now on."""
        super().__init__(log, run_id, (RefillRequested, GroupDecided), log.end_positions("events"))
