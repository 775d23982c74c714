"""Signs: what can be said of an error from facts and evidence, yes or no. The closed list that the
conditions of rules are made of."""

from __future__ import annotations

from enum import StrEnum


class Sign(StrEnum):
    """What may speak for or against the policy."""

    AFTER_FIRST_TOKEN = "after_first_token"
    """The policy had sampled a token before."""
    TO_ENGINE = "to_engine"
    """It hit a request to the inference engine."""
    DECODING = "decoding"
    """The engine had begun to answer."""
    SERVER_REFUSED = "server_refused"
    """The answer's status was 429 or 5xx."""
    REQUEST_REFUSED = "request_refused"
    """The answer's status was another 4xx."""
    CLOCK_RAN_OUT = "clock_ran_out"
    """The attempt ended by its clock cap."""
    STARVED = "starved"
    """The policy's clock was short of its cap."""
    IN_COMMAND = "in_command"
    """A command ran when the sandbox was lost; where that isn't known: the stage runs commands."""
    NEAR_LIMIT = "near_limit"
    """Memory or disk was nearly full when it was last measured."""
    DECLARED_END = "declared_end"
    """The sandbox had reached the end of the lifetime that its service declares."""
    SANDBOX_NOT_STARTED = "sandbox_not_started"
    """The last sandbox that was asked for never came up."""
    PEERS_LOST = "peers_lost"
    """Attempts at enough other tasks lost their sandboxes at the same time."""
    ENGINE_PEERS_FAILED = "engine_peers_failed"
    """The engine failed attempts at enough other tasks at the same time."""
    BASELINE_CRASHES = "baseline_crashes"
    """The task's tests got no verdict on the gold or the empty patch in a fresh sandbox."""
    BASELINE_OUT_OF_MEMORY = "baseline_out_of_memory"
    """There, memory ran out."""
    PRODUCER_SILENT = "producer_silent"
    """The producer of an abandoned attempt fell silent altogether."""


Signs = frozenset[Sign]
