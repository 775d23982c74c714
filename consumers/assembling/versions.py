"""Policy versions of a run: which one training goes on from, and which it didn't go on from."""

from __future__ import annotations


class PolicyVersions:
    """Published and orphaned ones."""

    def __init__(self) -> None:
        self.newest: int | None = None
        """The newest published one that training goes on from; null: none is known."""
        self.orphaned: frozenset[int] = frozenset()
        """Those published after the checkpoint that training went on from."""
        self._published: set[int] = set()

    def published(self, version: int) -> None:
        """Training made it, or goes on from it."""
        self._published.add(version)
        self._look()

    def orphan(self, version: int) -> None:
        """Training went on from an older one."""
        self.orphaned |= {version}
        self._look()

    def outlived(self, staleness_bound: int) -> list[int]:
        """Orphans whose tokens are stale by now, so that it doesn't matter any more."""
        if self.newest is None:
            return []
        return [each for each in self.orphaned if each < self.newest - staleness_bound]

    def _look(self) -> None:
        self.newest = max(self._published - self.orphaned, default=None)
