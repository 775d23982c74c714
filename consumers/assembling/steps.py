"""Groups by the step that they were sampled for, so that a step that gets no more is seen."""

from __future__ import annotations

from consumers.assembling.batching import StepGroups


class Steps:
    """Counts for steps that have no batch yet."""

    def __init__(self) -> None:
        self.counts: dict[int, StepGroups] = {}
        self.last = 0
        """The step of the newest batch; 0: there is none."""
        self._kept: list[tuple[int, str, int]] = []

    def opened(self, step: int | None) -> None:
        """A group was opened for a step."""
        if step is not None and step > self.last:
            count = self.counts.get(step, StepGroups(0, 0))
            self.counts[step] = StepGroups(count.opened + 1, count.undecided + 1)

    def decided(self, step: int | None) -> None:
        """A group of a step was decided, for the first time."""
        if step is not None and (count := self.counts.get(step)) is not None:
            self.counts[step] = StepGroups(count.opened, count.undecided - 1)

    def keep(self, step: int | None, group_id: str, partition: int) -> bool:
        """Whether a restart must read a closed group, to count it. If so, kept till `batched`."""
        if step is None or step <= self.last:
            return False
        self._kept.append((step, group_id, partition))
        return True

    def batched(self, step: int) -> list[tuple[str, int]]:
        """A step has its batch; (group, partition) of those that were kept for it."""
        self.last = max(self.last, step)
        self.counts = {each: of for each, of in self.counts.items() if each > self.last}
        done = [(group, partition) for each, group, partition in self._kept if each <= self.last]
        self._kept = [each for each in self._kept if each[0] > self.last]
        return done
