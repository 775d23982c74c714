"""The tokens of one attempt, as the engine saw them.

Invariant: within a segment, every prompt extends the tokens before it. What the engine sampled is
kept as ids and never tokenised again, so a trainer scores exactly what was sampled. Where a prompt
can't extend (a chat template that drops earlier thoughts), a new segment begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.tokens import Tokens


class History:
    """Grows turn by turn: prompt tokens, then what the policy sampled."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids: list[int] = list(prompt)
        """(n,) all tokens of the segment: the next request's prompt."""
        self.segment = 0
        """From 0 in the attempt."""
        self.segment_reason: str | None = None
        """Why the segment began, until a turn has told it; None for the first one."""
        self._sent = 0

    def observe(self, ids: Sequence[int]) -> None:
        """What the environment answered goes behind the last turn."""
        self.ids += ids

    def restart(self, ids: Sequence[int], reason: str) -> None:
        """The next prompt is not an extension: a new segment, which begins with `ids`."""
        self.ids = list(ids)
        self.segment += 1
        self.segment_reason = reason
        self._sent = 0

    def sampled(self, ids: Sequence[int], logprobs: Sequence[float]) -> Tokens:
        """Take in a completion; the payload of its turn: all since the turn before."""
        prompt = self.ids[self._sent :]
        self.ids += ids
        self._sent = len(self.ids)
        self.segment_reason = None
        return Tokens(
            ids=[*prompt, *ids],
            loss_mask=[0] * len(prompt) + [1] * len(ids),
            logprobs=[0.0] * len(prompt) + list(logprobs),
        )
