"""Which of several rewards of an attempt is its reward.

Invariant: it is the only one, or the one that the user names; none is ever guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from producers.importers.run import ForeignRun
from producers.importers.source import BadImport

SETTING = "reward_key"


def chosen_reward(
    run: ForeignRun, place: str, rewards: Mapping[str, float], key: str | None
) -> float | None:
    """The one reward, or that of `key`; null of several where no key is given, which is noted once
    a place. Raises BadImport where there are rewards and none of that key."""
    if key is not None:
        if rewards and key not in rewards:
            raise BadImport(
                f"{place} must have the reward {key!r} of --set {SETTING}, got {', '.join(rewards)}"
            )
        return rewards.get(key)
    if len(rewards) > 1:
        note = (
            f"{place} has several rewards ({', '.join(rewards)}), so the attempt has none: say"
            f" which with --set {SETTING}=NAME"
        )
        if note not in run.notes:
            run.note(note)
        return None
    return next(iter(rewards.values()), None)
