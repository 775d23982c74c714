"""Positions as text: `events/0:123,events/1:45`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from api.server.problems import Problem
from ledger.log import EventLog, Positions, TopicPartition
from ledger.wire.checks import CALENDAR_US, CLOCKS_DIFFER_US, to_micros

PATTERN = r"events/\d{1,9}:\d{1,18}(?:,events/\d{1,9}:\d{1,18}){0,999}"


def show(positions: Mapping[TopicPartition, int]) -> str:
    """Positions in the order of their partitions."""
    return ",".join(f"{place}:{offset}" for place, offset in sorted(positions.items()))


def parse(text: str) -> Positions | None:
    """The positions of a text that `show` could have written; None for any other."""
    if not re.fullmatch(PATTERN, text, re.ASCII):
        return None
    pairs = (part.removeprefix("events/").split(":") for part in text.split(","))
    return {TopicPartition("events", int(place)): int(offset) for place, offset in pairs}


def asked(text: str, place: str, log: EventLog, book: Mapping[TopicPartition, int]) -> Positions:
    """The positions that a client means by a time or by positions; a partition that isn't named is
    at its start. Raises Problem for what is neither, or lies ahead of the book."""
    positions = parse(text)
    starts = log.start_positions("events")
    if positions is None:
        positions = log.positions_at("events", _micros(text, place))
    if unknown := positions.keys() - starts.keys():
        raise Problem(
            422,
            "no_position",
            rule=f"the log has {len(starts)} partitions",
            place=place,
            value=min(unknown),
        )
    positions = starts | positions
    for where, offset in positions.items():
        if offset < starts[where]:
            raise Problem(
                422,
                "no_position",
                rule=f"{where} must be at least {starts[where]}, where the log starts",
                place=place,
                value=offset,
            )
        if offset > (now := book.get(where, starts[where])):
            raise Problem(
                409,
                "ahead_of_the_book",
                rule=f"{where} must be at most {now}, where the book is now",
                place=place,
                value=offset,
            )
    return positions


def _micros(text: str, place: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        micros = to_micros(moment)
    except (ValueError, OverflowError):
        micros = -1
    if micros not in CALENDAR_US or micros < 0:
        raise Problem(
            422,
            "invalid",
            rule="must be positions like events/0:123 or a time like 2026-01-31T12:00:00Z",
            place=place,
            value=text,
        )
    now = datetime.now(UTC)
    if micros > to_micros(now) + CLOCKS_DIFFER_US:
        raise Problem(
            422,
            "ahead_of_the_clock",
            rule=f"a time must not lie ahead, and it is {now:%Y-%m-%dT%H:%M:%SZ}",
            place=place,
            value=text,
        )
    return micros
