"""Drafts of a foreign run -> the log, each fact once.

Invariants:

1. What the log has by its event id is not appended again, so a second import appends nothing, and
   one that was killed is finished by the next.
2. What the log has with other content stays as it is, and is named.
3. The producer of an import is numbered without a hole and closed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ledger.avro import encode, wire_types
from ledger.log import EventLog, LogError
from ledger.wire.checks import Datum
from ledger.wire.encoder import Draft, FactEncoder, now_us
from producers.importers.held import records_of
from producers.importers.run import ForeignRun
from producers.importers.source import BadImport

CHUNK = 1_000
"""Facts that are appended at once."""
_NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass(slots=True)
class Written:
    """What became of a run's facts."""

    new: int = 0
    """Facts that were appended."""
    known: int = 0
    """Facts that the log had already."""
    changed: list[str] = field(default_factory=list[str])
    """Places of facts that the log has with other content."""
    undecided: int = 0
    """Groups that nobody has decided yet."""
    unjudged: int = 0
    """Ended attempts that nobody has judged yet."""


def write(log: EventLog, run: ForeignRun) -> Written:
    """Append what the log lacks of `run`. Raises LogError, BadImport for what is no valid fact."""
    drafts = run.drafts()
    check(run, drafts)  # all of it, before the first is appended
    held = _held(log, run.run_id)
    written = Written()
    new: list[Draft] = []
    for draft in drafts:
        digest = held.digests.get(draft.fields["event_id"])
        if digest is None:
            new.append(draft)
        elif digest != _digest(draft):
            written.changed.append(f"{draft.name} at {draft.fields['source_ref']}")
    written.known = len(drafts) - len(new)
    written.new = _append(log, run, new)
    written.undecided = len(run.groups.keys() - held.decided)
    ended = {each.trajectory_id for each in run.attempts if "trajectory_finished" in each.counts}
    written.unjudged = len(ended - held.judged)
    return written


def check(run: ForeignRun, drafts: list[Draft]) -> None:
    """Raise BadImport for a draft that is no valid fact."""
    for refused in FactEncoder(_producer(run), run.run_id).encode(drafts).refused:
        raise BadImport(f"{refused.error} ({refused.draft.fields['source_ref']})")


@dataclass(slots=True)
class _Held:
    """What a log has of a run."""

    digests: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Event id -> digest of the fact."""
    decided: set[str] = field(default_factory=set[str])
    """Groups."""
    judged: set[str] = field(default_factory=set[str])
    """Attempts."""


def _held(log: EventLog, run_id: str) -> _Held:
    held = _Held()
    for found in records_of(log, "events", run_id):
        for _, _, wire, datum in found:
            held.digests[datum["event_id"]] = _digest_of(wire.name, datum)
            if wire.name == "group_decided":
                held.decided.add(datum["group_id"])
            elif wire.name == "trajectory_judged":
                held.judged.add(datum["trajectory_id"])
    return held


def _digest(draft: Draft) -> bytes:
    fields = {name: value for name, value in draft.fields.items() if name != "tokens"}
    own = {"producer": "", "incarnation": _NOBODY, "producer_seq": 0}
    return _digest_of(draft.name, wire_types()[draft.name].check.datum(fields | own))


def _digest_of(name: str, datum: Datum) -> bytes:
    """Of all that a fact says, but not who recorded it, and from which copy of a file."""
    same = {"producer": "", "incarnation": _NOBODY, "producer_seq": 0, "source_ref": None}
    if "tokens_sha256" in datum:
        same["tokens_sha256"] = None
    return hashlib.blake2b(encode(wire_types()[name], {**datum, **same})).digest()


def _append(log: EventLog, run: ForeignRun, drafts: list[Draft]) -> int:
    if not drafts:
        return 0
    encoder = FactEncoder(_producer(run), run.run_id)
    for start in range(0, len(drafts), CHUNK):
        _append_chunk(log, encoder, drafts[start : start + CHUNK])
    count = {"accepted": encoder.next_seq, "last_seq": encoder.next_seq - 1}
    _append_chunk(log, encoder, [Draft("producer_closed", count, now_us())])
    return len(drafts)


def _append_chunk(log: EventLog, encoder: FactEncoder, drafts: list[Draft]) -> None:
    encoded = encoder.encode(drafts)
    for refused in encoded.refused:
        raise LogError(f"an imported fact can't be recorded: {refused.error}")
    # Payloads before the facts that name them.
    log.append_each({"tokens": encoded.tokens, "events": encoded.events})


def _producer(run: ForeignRun) -> str:
    return f"import-{run.form}"
